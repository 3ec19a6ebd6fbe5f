"""FedSim jobs on NVFlare, which deploys, starts and monitors the parties at its sites (extra ``fedsim-vfl[nvflare]``).

The tensors travel over FedSim's own connections with mutual TLS; see ``docs/howto/nvflare.md``.
"""

from fedsim.registry import lazy_exports

# The process at a site needs no recipe, which takes seconds to import.
_HOMES = {"recipe": ["FedSimRecipe", "read_result"]}

__all__ = [name for names in _HOMES.values() for name in names]

__getattr__ = lazy_exports(__name__, _HOMES)
