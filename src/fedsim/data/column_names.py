"""Look up columns in a header, and classify them by the words of their names.

Recognised are locations, names and dates of birth in English, German, French and Spanish.
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
# Alone or beside one of NAME_WORDS: a person's name.
PERSON_NAME_WORDS = FIRST_NAME_WORDS | FAMILY_NAME_WORDS | {"middle", "full"}
SALUTATION_WORDS = {"title"}  # with few values it is Mr and Ms, which identify nobody
BIRTH_WORDS = {
    *("birth", "birthday", "birthdate", "born", "dob", "founded", "founding"),
    *("geboren", "geburt", "geburtsdatum", "geburtstag", "gebdatum", "geb", "naissance", "nacimiento"),
}

PERSONAL_PATTERN = re.compile(
    r"(name|names|phone|phones|mail|mails|address|street|birth)$"
    r"|^(e?mail(?!ing)|birth|born$|dob$|phone|address|street)"
    r"|(strasse|straße|anschrift|adresse|naissance|nacimiento)$"
    r"|^(geboren|geburt|gebdatum|telefon|teléfono|(prenom|prénom|nom|apellidos?|rue|calle|direcci[oó]n)$)"
)
NAME_PART_WORDS = {"first", "last", "given", "nombre"}  # may be part of a name or of anything else


def name_words(name: str) -> tuple[str, ...]:
    """Split a column's name into words.

    >>> name_words("startLat_2"), name_words("Company name")
    (('start', 'lat', '2'), ('company', 'name'))
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[^\W\d_]+|\d+", apart.lower()))


def is_latitude_column(column: str) -> bool:
    """Return whether the name means latitude."""
    return bool(LATITUDE_WORDS & set(name_words(column)))


def is_longitude_column(column: str) -> bool:
    """Return whether the name means longitude."""
    return bool(LONGITUDE_WORDS & set(name_words(column)))


def latitude_longitude_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return all columns named latitude or longitude, if there are both.

    >>> latitude_longitude_columns(["start_lat", "area", "start_lon"]), latitude_longitude_columns(["lat", "area"])
    (('start_lat', 'start_lon'), ())
    """
    found = tuple(column for column in columns if is_latitude_column(column) or is_longitude_column(column))
    both = any(map(is_latitude_column, found)) and any(map(is_longitude_column, found))
    return found if both else ()


def is_birth_date_column(column: str) -> bool:
    """Return whether the name means a date of birth."""
    return bool(BIRTH_WORDS & set(name_words(column)))


def is_name_column(column: str) -> bool:
    """Return whether the name means only a name or an address; such a column links, however few its values.

    >>> [is_name_column(column) for column in ("first_name", "Nachname", "street", "company size", "title")]
    [True, True, True, False, False]
    """
    words = [word for word in name_words(column) if not word.isdecimal()]
    known = (NAME_WORDS | PERSON_NAME_WORDS) - SALUTATION_WORDS
    return bool(words) and all(word in known or word.endswith("name") for word in words)


def person_name_part(column: str) -> str:
    """Return ``first`` or ``family`` for a part of a person's name; an empty string for neither or both.

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
    """Return whether the name means a name, birth, phone, mail or address.

    >>> [is_personal_column(name) for name in ("lastName", "e-mail", "DateOfBirth", "mailings", "tournaments", "first")]
    [True, True, True, False, False, False]
    """
    return any(PERSONAL_PATTERN.search(word) for word in name_words(column))


def is_name_part_column(column: str) -> bool:
    """Return whether the name contains first or last; such a column holds names of people if it is text."""
    return bool(NAME_PART_WORDS & set(name_words(column)))


def column_positions(source: object, header: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Return the positions of the wanted columns in the header, each present exactly once; errors name ``source``.

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

    Only the nearest name is shown, not the whole header: in a file without header it is the first record.

    >>> missing_column_message("latt", ["id", "lat", "lon"])
    "there is no column 'latt' among its 3; did you mean 'lat'?"
    """
    similar = _similar_column(name, header)
    advice = f"did you mean {similar!r}?" if similar else "check the name and that the first line is the header"
    return f"there is no column {name!r} among its {len(header)}; {advice}"


def _similar_column(name: str, header: Sequence[str]) -> str | None:
    folded = {column.strip().casefold(): column for column in header}
    return folded.get(nearest_word(name.strip().casefold(), folded))
