"""What a column's name says: a place, a name, a date of birth; in English, German, French and Spanish."""

from __future__ import annotations

import re

LATITUDE, LONGITUDE = {"lat", "latitude"}, {"lon", "lng", "long", "longitude"}
FIRST = {
    *("first", "firstname", "given", "givenname", "forename"),
    *("vorname", "rufname", "prenom", "prénom", "nombre"),
}
FAMILY = {
    *("last", "lastname", "family", "familyname", "surname"),
    *("nachname", "familienname", "zuname", "nom", "apellido", "apellidos"),
}
STREET = {"street", "address", "strasse", "straße", "anschrift", "adresse", "rue", "calle", "direccion", "dirección"}
NAMES = {
    *("name", "names", "title", "company", "firm", "author", "surname", "forename", "firma", "entreprise", "empresa"),
    *("vorname", "rufname", "nachname", "familienname", "zuname", "prenom", "prénom", "nom", "apellido", "apellidos"),
    *STREET,
}
GIVEN = FIRST | FAMILY | {"middle", "full"}  # beside a word of NAMES, or alone: a person's name
SALUTATION = {"title"}  # of few values it is Mr and Ms, and tells nobody apart
BIRTH = {
    *("birth", "birthday", "birthdate", "born", "dob", "founded", "founding"),
    *("geboren", "geburt", "geburtsdatum", "geburtstag", "gebdatum", "geb", "naissance", "nacimiento"),
}

PERSONAL = re.compile(
    r"(name|names|phone|phones|mail|mails|address|street|birth)$"
    r"|^(e?mail(?!ing)|birth|born$|dob$|phone|address|street)"
    r"|(strasse|straße|anschrift|adresse|naissance|nacimiento)$"
    r"|^(geboren|geburt|gebdatum|telefon|teléfono|(prenom|prénom|nom|apellidos?|rue|calle|direcci[oó]n)$)"
)
PARTS = {"first", "last", "given", "nombre"}  # of a name, or of anything else


def words_of(name: str) -> tuple[str, ...]:
    """The words a column's name is made of.

    >>> words_of("startLat_2"), words_of("Company name")
    (('start', 'lat', '2'), ('company', 'name'))
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)
    return tuple(re.findall(r"[^\W\d_]+|\d+", apart.lower()))


def says_latitude(column: str) -> bool:
    """Whether a column's name says latitude."""
    return bool(LATITUDE & set(words_of(column)))


def says_longitude(column: str) -> bool:
    """Whether a column's name says longitude."""
    return bool(LONGITUDE & set(words_of(column)))


def says_birth(column: str) -> bool:
    """Whether a column's name says a date of birth."""
    return bool(BIRTH & set(words_of(column)))


def says_name(column: str) -> bool:
    """Whether a column's name says nothing but a name or an address; such a column links, however few its values.

    >>> [says_name(column) for column in ("first_name", "Nachname", "street", "company size", "title")]
    [True, True, True, False, False]
    """
    words = [word for word in words_of(column) if not word.isdecimal()]
    known = (NAMES | GIVEN) - SALUTATION
    return bool(words) and all(word in known or word.endswith("name") for word in words)


def part_of_name(column: str) -> str:
    """Which part of a person's name a column's name says; nothing where it says neither or both.

    >>> [part_of_name(column) for column in ("Vorname", "family_name", "name")]
    ['first', 'family', '']
    """
    words = set(words_of(column))
    said = [part for part, known in (("first", FIRST), ("family", FAMILY)) if words & known]
    return said[0] if len(said) == 1 else ""


def says_who(column: str) -> bool:
    """Whether a column's name says who a record is: a name or a date of birth, and no street.

    >>> [says_who(column) for column in ("Vorname", "dob", "street name", "town")]
    [True, True, False, False]
    """
    return says_birth(column) or (says_name(column) and not STREET & set(words_of(column)))


def says_person(column: str) -> bool:
    """Whether a column's name says name, birth, phone, mail or address.

    >>> [says_person(column) for column in ("lastName", "e-mail", "DateOfBirth", "mailings", "tournaments", "first")]
    [True, True, True, False, False, False]
    """
    return any(PERSONAL.search(word) for word in words_of(column))


def says_part_of_name(column: str) -> bool:
    """Whether a column's name says first or last, which are names of people where it holds text."""
    return bool(PARTS & set(words_of(column)))
