"""Proposals of `fedsim init`: how two tables can be linked and what can be learnt, and the files that say so."""

from fedsim.wizard.file_templates import SetupPlan, TablePlan, propose_party_names, render_job, render_party
from fedsim.wizard.proposal import FeatureProposal, LinkageProposal, TableProfiles, propose_features, propose_linkage

__all__ = [
    "FeatureProposal",
    "LinkageProposal",
    "SetupPlan",
    "TablePlan",
    "TableProfiles",
    "propose_features",
    "propose_linkage",
    "propose_party_names",
    "render_job",
    "render_party",
]
