"""Look up columns in a header, and classify them by the words in their names.

Locations, names, dates of birth and codes are recognised in English, German, French and Spanish.
"""

import re
from collections import Counter
from collections.abc import Sequence

from fedsim.errors import InputError, nearest_word

LATITUDE_WORDS, LONGITUDE_WORDS = {"lat", "latitude"}, {"lon", "lng", "long", "longitude"}
FIRST_NAME_WORDS = {
    *("first", "firstname", "given", "givenname", "forename"),
    *("vorname", "rufname", "prenom", "prénom", "nombre"),
}
FAMILY_NAME_WORDS = {
    *("last", "lastname", "family", "familyname", "surname"),
    *("nachname", "familienname", "zuname", "nom", "apellido", "apellidos"),
}
STREET_WORDS = {
    *("street", "address", "strasse", "straße", "anschrift", "adresse", "rue", "calle", "direccion", "dirección"),
}
NAME_WORDS = {
    *("name", "names", "title", "company", "firm", "author", "surname", "forename", "firma", "entreprise", "empresa"),
    *("vorname", "rufname", "nachname", "familienname", "zuname", "prenom", "prénom", "nom", "apellido", "apellidos"),
    *STREET_WORDS,
}
# Alone or together with one of NAME_WORDS: a person's name.
PERSON_NAME_WORDS = FIRST_NAME_WORDS | FAMILY_NAME_WORDS | {"middle", "full"}
SALUTATION_WORDS = {"title"}  # with few values it is Mr and Ms, which identify nobody
BIRTH_WORDS = {
    *("birth", "birthday", "birthdate", "born", "dob", "founded", "founding"),
    *("geboren", "geburt", "geburtsdatum", "geburtstag", "gebdatum", "geb", "naissance", "nacimiento"),
}

YEAR_WORDS = {"year", "jahr", "année", "annee", "año"}

PERSONAL_PATTERN = re.compile(
    r"(name|names|phone|phones|mail|mails|address|street|birth)$"
    r"|^(e?mail(?!ing)|birth|born$|dob$|phone|address|street)"
    r"|(strasse|straße|anschrift|adresse|naissance|nacimiento)$"
    r"|^(geboren|geburt|gebdatum|telefon|teléfono|(prenom|prénom|nom|apellidos?|rue|calle|direcci[oó]n)$)"
)
# Whole numbers in a column whose name ends with one of these words are codes: 8 is not twice 4.
KEY_WORDS = {"id", "key", "nr", "nbr", "no", "num", "number", "nummer", "numero", "número"}
CODE_WORDS = {
    *("code", "codes", "zip", "postal", "plz", "postleitzahl", "naics", "sic", "isic", "nace", "naf", "fips", "geoid"),
    *("insee", "siren", "siret", "icd", "iata", "icao", "sku", "ean", "upc", "gtin", "isbn", "barcode"),
    *("station", "store", "shop", "branch", "warehouse", "depot", "filiale", "route", "airport", "airline", "carrier"),
    *("tract", "district", "county", "state", "country", "region", "zone", "borough", "precinct", "ward"),
    *("municipality", "bezirk", "gemeinde", "landkreis", "commune", "departement", "département", "municipio"),
    *("sector", "industry", "occupation", "department", "dept", "type", "category", "vendor", "supplier", "customer"),
    *("client", "user", "patient", "product", "article", "item", "structure"),
}
# If the name contains one of these words, they are quantities.
QUANTITY_WORDS = {
    *(
        "year",
        "month",
        "week",
        "day",
        "date",
        "hour",
        "minute",
        "second",
        "time",
        "ts",
        "age",
        "count",
        "counts",
        "total",
    ),
    *("sum", "mean", "average", "avg", "median", "min", "max", "share", "rate", "per", "of", "by", "distance", "dist"),
    *("size", "area", "length", "price", "rent", "sales", "income", "population", "score", "rank", "level", "floor"),
    *("room", "bedroom", "bathroom", "storey", "jahr", "monat", "tag", "alter", "anzahl"),
}
NAME_PART_WORDS = {"first", "last", "given", "nombre"}  # may be part of a name or of anything else


def name_words(name: str) -> tuple[str, ...]:
    """Split a column's name into words.

    >>> name_words("startLat_2"), name_words("Company name")
    (('start', 'lat', '2'), ('company', 'name'))
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[^\W\d_]+|\d+", apart.lower()))


def have_same_name(one: str, other: str) -> bool:
    """Return whether two columns have the same name but for case and punctuation.

    >>> have_same_name("resale_price", "Resale price"), have_same_name("price", "price per m2")
    (True, False)
    """
    return one == other or (name_words(one) == name_words(other) != ())


def is_latitude_column(column: str) -> bool:
    """Return whether the column name denotes a latitude."""
    return bool(LATITUDE_WORDS & set(name_words(column)))


def is_longitude_column(column: str) -> bool:
    """Return whether the column name denotes a longitude."""
    return bool(LONGITUDE_WORDS & set(name_words(column)))


def latitude_longitude_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return all latitude and longitude columns if both kinds are present, otherwise none.

    >>> latitude_longitude_columns(["start_lat", "area", "start_lon"]), latitude_longitude_columns(["lat", "area"])
    (('start_lat', 'start_lon'), ())
    """
    found = tuple(column for column in columns if is_latitude_column(column) or is_longitude_column(column))
    both = any(map(is_latitude_column, found)) and any(map(is_longitude_column, found))
    return found if both else ()


def coordinate_pairs(columns: Sequence[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the latitude and longitude column of every place, and the other words that their two names share.

    >>> coordinate_pairs(["end_lon", "startLat", "start_lon", "end_lat", "area"])
    [('startLat', 'start_lon', ('start',)), ('end_lat', 'end_lon', ('end',))]
    """
    words = {name: name_words(name) for name in columns}
    rest = {name: tuple(w for w in words[name] if w not in LATITUDE_WORDS | LONGITUDE_WORDS) for name in columns}
    latitudes, longitudes = (list(filter(is_axis, columns)) for is_axis in (is_latitude_column, is_longitude_column))
    return [(lat, lon, rest[lat]) for lat in latitudes for lon in longitudes if rest[lat] == rest[lon] and lat != lon]


def is_birth_date_column(column: str) -> bool:
    """Return whether the column name denotes a date of birth."""
    return bool(BIRTH_WORDS & set(name_words(column)))


def is_year_column(column: str) -> bool:
    """Return whether the column name denotes a year."""
    return bool(YEAR_WORDS & set(name_words(column)))


def is_name_column(column: str) -> bool:
    """Return whether the column name can only denote a name or an address; few distinct values do not rule it out.

    >>> [is_name_column(column) for column in ("first_name", "Nachname", "street", "company size", "title")]
    [True, True, True, False, False]
    """
    words = [word for word in name_words(column) if not word.isdecimal()]
    known = (NAME_WORDS | PERSON_NAME_WORDS) - SALUTATION_WORDS
    return bool(words) and all(word in known or word.endswith("name") for word in words)


def person_name_part(column: str) -> str:
    """Return which part of a person's name the column holds, ``first`` or ``family``, or "" for neither or both.

    >>> [person_name_part(column) for column in ("Vorname", "family_name", "name")]
    ['first', 'family', '']
    """
    words = set(name_words(column))
    parts = [part for part, known in (("first", FIRST_NAME_WORDS), ("family", FAMILY_NAME_WORDS)) if words & known]
    return parts[0] if len(parts) == 1 else ""


def identifies_person(column: str) -> bool:
    """Return whether the column identifies a person: a name or a date of birth, not a street.

    >>> [identifies_person(column) for column in ("Vorname", "dob", "street name", "town")]
    [True, True, False, False]
    """
    return is_birth_date_column(column) or (is_name_column(column) and not STREET_WORDS & set(name_words(column)))


def is_personal_column(column: str) -> bool:
    """Return whether the column name denotes a name, birth date, phone number, e-mail or postal address.

    >>> [is_personal_column(name) for name in ("lastName", "e-mail", "DateOfBirth", "mailings", "tournaments", "first")]
    [True, True, True, False, False, False]
    """
    return any(PERSONAL_PATTERN.search(word) for word in name_words(column))


def is_name_part_column(column: str) -> bool:
    """Return whether the column name contains "first" or "last"; if it holds text, it holds people's names."""
    return bool(NAME_PART_WORDS & set(name_words(column)))


def is_quantity_column(column: str) -> bool:
    """Return whether the column name denotes a count, a time or another quantity."""
    return bool(QUANTITY_WORDS & set(name_words(column)))


def is_code_column(column: str) -> bool:
    """Return whether whole numbers in a column of this name are codes or reference numbers.

    >>> [is_code_column(name) for name in ("NAICS_2017", "ZipCode", "store_nr", "from station id", "codePostal")]
    [True, True, True, True, True]
    >>> [is_code_column(name) for name in ("year", "rooms no", "distance_to_station", "visits per store", "number")]
    [False, False, False, False, False]
    """
    words = [word for word in name_words(column) if not word.isdecimal()]
    if not words or is_quantity_column(column):
        return False
    *rest, head = words
    if head in KEY_WORDS:  # of one thing: "rooms no" counts rooms
        return head == "id" or (bool(rest) and not rest[-1].endswith("s"))
    compound = head.endswith(("code", "zip", "nummer")) or head.removesuffix("id") in CODE_WORDS
    return compound or words[0] in ("code", "codigo", "código")


def column_positions(source: object, header: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Return the positions of the given columns in the header; each must occur exactly once. Errors name ``source``.

    >>> column_positions("flats.csv", ["id", "lat", "lon"], ["lon", "lat"])
    [2, 1]
    """
    wanted, counts = list(header) if columns is None else list(columns), Counter(header)
    for name in wanted:
        if name not in counts:
            message = f"{source}: {missing_column_message(name, header)}"
            raise InputError(message, code="missing-column", column=name, suggestion=_similar_column(name, header))
        if counts[name] > 1:
            message = f"{source}: column {name!r} occurs {counts[name]} times in the header; rename all but one"
            raise InputError(message, code="duplicate-column", column=name)
        if name == "*" or (name.startswith("^") and name.endswith("$")):  # polars would select other columns by it
            raise InputError(f"{source}: column {name!r} is a pattern, not a name; rename it", code="pattern-as-name")
    places = {name: place for place, name in enumerate(header)}
    return [places[name] for name in wanted]


def missing_column_message(name: str, header: Sequence[str]) -> str:
    """Describe a missing column.

    Only the nearest name is shown, because in a file without a header the first line is a record.

    >>> missing_column_message("latt", ["id", "lat", "lon"])
    "there is no column 'latt' among its 3; did you mean 'lat'?"
    """
    similar = _similar_column(name, header)
    advice = f"did you mean {similar!r}?" if similar else "check the name and that the first line is the header"
    return f"there is no column {name!r} among its {len(header)}; {advice}"


def missing_identifier_message(name: str, header: Sequence[str], party_file: object) -> str:
    """Describe an identifier of the job that the table lacks, with the configuration line that maps it.

    >>> print(missing_identifier_message("lat", ["id", "Latitude", "Longitude"], "city.toml"))
    no column 'lat' among its 3, the identifier of the job; add to city.toml: [identifiers] lat = "Latitude"
    """
    similar = next((column for column in header if name_words(column) == name_words(name)), None)
    for is_axis in (is_latitude_column, is_longitude_column):
        similar = similar or next((column for column in header if is_axis(name) and is_axis(column)), None)
    own = similar or _similar_column(name, header) or "your column"
    key = name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else f'"{name}"'
    rule = f"no column {name!r} among its {len(header)}, the identifier of the job"
    return f'{rule}; add to {party_file}: [identifiers] {key} = "{own}"'


def _similar_column(name: str, header: Sequence[str]) -> str | None:
    folded = {column.strip().casefold(): column for column in header}
    return folded.get(nearest_word(name.strip().casefold(), folded))
