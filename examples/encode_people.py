"""Two offices encode their people with one key; the filters alone still show which people are similar."""

from __future__ import annotations

from datetime import date

import numpy as np

from fedsim.linkage.encoding import BitFlip, DateFilter, Key, Schema, SchemaField, StringFilter

REGISTRY = {
    "name": ["Katherine Johnson", "Grace Hopper", "Mary Jackson"],
    "born": ["1918-08-26", "1906-12-09", "1921-04-09"],
    "street": ["12 Oak Lane", "3 Harbour Street", "77 Mill Road"],
}
CLINIC = {
    "name": ["Marie Jackson", "Catherine Johnson", "Dorothy Vaughan", "Grace M. Hopper"],
    "born": ["1921-04-09", "1918-08-28", "1910-09-20", "1906-12-09"],
    "street": ["77 Mill Rd", "12 Oak Lane", "5 Station Road", "Harbour Street 3"],
}
FIELDS = [
    SchemaField("name", StringFilter()),
    SchemaField("born", DateFilter(date(1900, 1, 1), date(2030, 12, 31), threshold=365)),
    SchemaField("street", StringFilter()),
]


def distances(schema: Schema, key: Key, rng: np.random.Generator) -> np.ndarray:
    """Hamming distances from every registry record to every clinic record, as a coordinator computes them."""
    registry = schema.encode(REGISTRY, key, rng, table="registry")
    clinic = schema.encode(CLINIC, key, rng, table="clinic")
    return np.bitwise_count(registry.bits[:, np.newaxis] ^ clinic.bits).sum(axis=2)


def main() -> None:
    key, rng = Key.generate(), np.random.default_rng()
    for title, hardening in [("plain", []), ("hardened", [BitFlip(epsilon=3.0)])]:
        schema = Schema(FIELDS, hardening=hardening)
        print(f"{title}: {schema.n_bits} bits per record, epsilon per record {schema.record_epsilon}")
        for name, row in zip(REGISTRY["name"], distances(schema, key, rng), strict=True):
            print(f"  {name:18} is nearest to {CLINIC['name'][row.argmin()]:18} Hamming distances {row.tolist()}")


if __name__ == "__main__":
    main()
