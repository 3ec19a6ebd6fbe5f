"""Two generated registers of firms in European languages, to measure linkage on names that were not used for tuning.

Words, legal forms and kinds of errors differ from :mod:`fedsim_lab.datasets.generated`. In German, French, Spanish and
Polish, accents are lost or transliterated, words are abbreviated, dropped or run together, towns are added, and letters
are mistyped as on a keyboard or misread as by OCR. In Turkish, Czech, Hungarian and Finnish, whose legal forms the
product does not know, names are written by ear, truncated to the width of a form, shortened to initials or split.
"""

import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedsim.types import Integers


@dataclass(frozen=True)
class Language:
    """Parts of the names of firms in one language, separated by spaces; an underscore stands for a space.

    ``legal_forms`` maps each form to its other spellings.
    """

    starts: str
    ends: str
    trades: str
    towns: str
    patterns: tuple[str, ...]
    legal_forms: dict[str, tuple[str, ...]]


GERMAN = Language(
    "Brand Eich Grün Lind Stein Wald Schön Kirch König Röth Weiß Hölz Mühl Feld Birk Acker Lauter Wies Roß Dorn",
    "bacher berger mann hofer meier hauser müller wald felder stätter inger ecker",
    "Bäckerei Metallbau Möbelhaus Spedition Gärtnerei Schlosserei Druckerei Brauerei Autohaus Elektrotechnik "
    "Maschinenbau Bestattungen Dachdeckerei Küchenstudio Weingut Kältetechnik Apotheke Tischlerei",
    "München Köln Nürnberg Düsseldorf Saarbrücken Lübeck Würzburg Gießen Göttingen Tübingen Zwickau",
    (
        "{trade} {name} {form}",
        "{name} {trade} {form}",
        "Gebrüder {name} {trade} {form}",
        "{trade} {name} & Söhne {form}",
        "{trade} {name} {town} {form}",
    ),
    {
        "GmbH": ("Gesellschaft mit beschränkter Haftung", "G.m.b.H.", "Ges. mbH", ""),
        "AG": ("Aktiengesellschaft", ""),
        "GmbH & Co. KG": ("GmbH & Co KG", "GmbH und Co. Kommanditgesellschaft", "KG"),
        "e.K.": ("eingetragener Kaufmann", "eK", ""),
    },
)
FRENCH = Language(
    "Beau Cham Del Fon Gar Lefè Mon Per Roch Vill Bonn Cour Des Mar Thé Grand Clé Bri Sau Noë",
    "vrier lin pagne tier champs rieux bert neau çon zère ville court taine rand",
    "Boulangerie Menuiserie Plomberie Électricité Charpente Pâtisserie Garage Maçonnerie Transports Imprimerie "
    "Fromagerie Ébénisterie Serrurerie Pépinières Chaudronnerie Librairie Conserverie",
    "Orléans Besançon Nîmes Béziers Angoulême Évreux Mâcon Alençon Périgueux Châlons Sète",
    (
        "{trade} {name} {form}",
        "Établissements {name} {trade} {form}",
        "{trade} {name} et Fils {form}",
        "{trade} {name} Frères {form}",
        "{trade} {name} de {town} {form}",
    ),
    {
        "SARL": ("S.A.R.L.", "Société à responsabilité limitée", ""),
        "SAS": ("S.A.S.", "Société par actions simplifiée", ""),
        "EURL": ("E.U.R.L.", ""),
        "SA": ("S.A.", "Société anonyme", ""),
    },
)
SPANISH = Language(
    "Alva Beni Cara Esco Fuen Gala Ibá Mora Nava Oli Peñal Quin Riva Sala Toro Urru Vallé Zara Monte Cande",
    "rez ñez bar veros dillo tegui goza mayor guera cedo vosa lera",
    "Construcciones Panadería Carpintería Transportes Ferretería Bodegas Conservas Talleres Muebles Imprenta "
    "Cerámica Hostelería Electrónica Jardinería Peluquería Fundición Óptica Viñedos",
    "Cádiz Málaga Logroño Córdoba León Ávila Jaén Almería Cáceres Castellón Gijón",
    (
        "{trade} {name} {form}",
        "{trade} Hermanos {name} {form}",
        "{trade} {name} e Hijos {form}",
        "{trade} {name} de {town} {form}",
    ),
    {
        "S.L.": ("SL", "Sociedad Limitada", ""),
        "S.A.": ("SA", "Sociedad Anónima", ""),
        "S.L.U.": ("SLU", "Sociedad Limitada Unipersonal", ""),
    },
)
POLISH = Language(
    "Wiś Kowal Dąbr Zieliń Szym Woź Kaczm Piotr Grab Jabło Król Maj Nowa Ostr Pawł Rut Sikor Tomasz Urbań Żół",
    "niewski ski owski czyk arek kiewicz owicz ewski niak ński",
    "Piekarnia Cukiernia Hurtownia Drukarnia Zakład_Ślusarski Przedsiębiorstwo_Budowlane Spółdzielnia_Mleczarska "
    "Mechanika_Pojazdowa Gospodarstwo_Ogrodnicze Biuro_Rachunkowe Kwiaciarnia Księgarnia Młyn Tartak Cegielnia",
    "Kraków Łódź Poznań Gdańsk Wrocław Białystok Częstochowa Rzeszów Toruń Zamość Elbląg",
    (
        "{trade} {name} {form}",
        "{trade} Bracia {name} {form}",
        "PPHU {name} {trade} {form}",
        "{name} i Syn {trade} {form}",
        "{trade} {name} {town} {form}",
    ),
    {
        "Sp. z o.o.": ("Spółka z ograniczoną odpowiedzialnością", "sp. z o. o.", "Sp.z o.o.", ""),
        "S.A.": ("Spółka Akcyjna", "SA", ""),
        "Sp. j.": ("Spółka jawna", "sp.j.", ""),
    },
)
TURKISH = Language(
    "Yıl Kara Öz De Çe Ak Gül Şa Tür Ya Bo Er Ay Kö Dur Gün Ka Sön İn Uy",
    "maz kaya demir türk lik han soylu dağ bulut taş oğlu doğan gür ten",
    "Tekstil Gıda İnşaat Nakliyat Mobilya Turizm Otomotiv Kuyumculuk Matbaacılık Tarım Plastik Ambalaj Madencilik "
    "Deri Seramik Makine Kimya Balıkçılık",
    "İstanbul Eskişehir Diyarbakır Muğla Çanakkale Şanlıurfa Kütahya Iğdır Gümüşhane Ağrı",
    ("{name} {trade} {form}", "{name} Kardeşler {trade} {form}", "{town} {name} {trade} {form}"),
    {
        "A.Ş.": ("Anonim Şirketi", "AŞ", "A.S.", ""),
        "Ltd. Şti.": ("Limited Şirketi", "Ltd Şti", "Ltd. Sti.", ""),
        "San. ve Tic. A.Ş.": ("Sanayi ve Ticaret Anonim Şirketi", "Sanayi Tic. AŞ", ""),
    },
)
CZECH = Language(
    "Nov Svob Dvoř Čer Proch Kuč Veš Hor Něm Pokor Mare Pospí Hájk Jel Růž Ben Fial Sed Dole Zem",
    "ák oda áček ný ázka era lý áková ec ný šil ek ínek ička",
    "Pekařství Truhlářství Zámečnictví Stavby Autodoprava Kovovýroba Zahradnictví Řeznictví Elektromontáže Sklářství "
    "Tiskárna Pivovar Lékárna Účetnictví Klempířství Strojírny Papírnictví",
    "Plzeň Olomouc Liberec Hradec_Králové České_Budějovice Ústí Pardubice Zlín Jihlava Opava",
    (
        "{trade} {name} {form}",
        "{name} {trade} {form}",
        "{name} a synové {trade} {form}",
        "{trade} {town} {name} {form}",
    ),
    {
        "s.r.o.": ("společnost s ručením omezeným", "spol. s r.o.", "s. r. o.", ""),
        "a.s.": ("akciová společnost", "a. s.", ""),
        "v.o.s.": ("veřejná obchodní společnost", "vos", ""),
    },
)
HUNGARIAN = Language(
    "Ková Sza Hor Ná Tót Bala Far Var Ki Lak Mész Osz Pap Rác Sím Ta Ull Zsi Gö Bár",
    "cs bó váth gy th zs kas ga ss atos áros kó réti mondi lyi",
    "Pékség Asztalos Építő Fuvarozó Nyomda Borászat Kertészet Lakatos Villanyszerelő Húsüzem Gépgyártó Könyvelő Cipő "
    "Szállító Faipari Malom Üvegező Tejipari",
    "Győr Székesfehérvár Kecskemét Nyíregyháza Szombathely Veszprém Békéscsaba Sopron Eger Pécs",
    (
        "{name} {trade} {form}",
        "{name} és Társa {trade} {form}",
        "{name} és Fiai {trade} {form}",
        "{town}i {trade} {form}",
    ),
    {
        "Kft.": ("Korlátolt Felelősségű Társaság", "KFT", ""),
        "Bt.": ("Betéti Társaság", "BT", ""),
        "Zrt.": ("Zártkörűen Működő Részvénytársaság", "ZRT", "Rt."),
    },
)
FINNISH = Language(
    "Virta Koske Mäke Niemi Lehto Saari Heiki Kallio Järve Hakka Lahte Ranta Salo Pelto Ojala Suomi Tuomi Aho Koivu "
    "Kangas",
    "nen la lä sto salo mäki ranta niemi korpi vaara",
    "Leipomo Rakennus Kuljetus Sähkö Puusepänliike Kirjapaino Kalastamo Saha Konepaja Kukkakauppa Tilitoimisto Metalli "
    "Maalaamo Meijeri Autokorjaamo Huonekalu Puutarha",
    "Jyväskylä Hämeenlinna Seinäjoki Lappeenranta Mäntsälä Hyvinkää Närpiö Kemijärvi Pietarsaari Äänekoski",
    (
        "{trade} {name} {form}",
        "{name} {trade} {form}",
        "{name} ja Pojat {trade} {form}",
        "{town}n {trade} {name} {form}",
    ),
    {"Oy": ("Osakeyhtiö", "OY", ""), "Ky": ("Kommandiittiyhtiö", ""), "Tmi": ("Toiminimi", "T:mi", "")},
)
LANGUAGES = (GERMAN, FRENCH, SPANISH, POLISH)
OTHER_LANGUAGES = (TURKISH, CZECH, HUNGARIAN, FINNISH)
TRANSLITERATED = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue", "ß": "ss"})
STROKES = str.maketrans("łŁ", "lL")
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
MISHEARD = (
    *(("y", "i"), ("i", "y"), ("k", "c"), ("c", "k"), ("v", "w"), ("s", "z"), ("z", "s"), ("t", "d"), ("d", "t")),
    *(("b", "p"), ("g", "k"), ("nn", "n"), ("n", "nn"), ("aa", "a"), ("l", "ll"), ("sz", "s"), ("e", "a"), ("o", "u")),
)
FORM_WIDTH = 28  # letters
MISREAD = (("rn", "m"), ("l", "1"), ("o", "0"), ("i", "l"), ("e", "c"), ("cl", "d"), ("S", "5"))


@dataclass(frozen=True, eq=False)
class Registers:
    """Names in two registers; ``truth[i]`` is the row in ``theirs`` of our firm ``i``, or -1."""

    ours: list[str]
    theirs: list[str]
    truth: Integers


def generate_registers(
    rng: np.random.Generator,
    *,
    ours: int = 3_000,
    theirs: int = 6_000,
    shared: float = 0.7,
    languages: Sequence[Language] = LANGUAGES,
) -> Registers:
    """Generate two registers with some firms in common, all with distinct names; each set has its own errors.

    >>> registers = generate_registers(np.random.default_rng(7), ours=40, theirs=100)
    >>> len(registers.theirs), int((registers.truth >= 0).sum())
    (100, 28)
    """
    count = min(round(shared * ours), theirs)
    respell: Callable[..., str] = _respell_by_ear if languages is OTHER_LANGUAGES else _respell
    firms: dict[str, tuple[Language, str]] = {}
    while len(firms) < ours + theirs - count:
        name, language, form = _draw_name(languages, rng)
        firms.setdefault(name, (language, form))
    names = list(firms)
    known = rng.permutation(ours)[:count]
    listed = [respell(names[row], *firms[names[row]], rng) for row in known] + names[ours:]
    order = rng.permutation(theirs)
    truth = np.full(ours, -1, dtype=np.int64)
    truth[known] = np.argsort(order)[:count]
    return Registers(names[:ours], [listed[row] for row in order], truth)


def _pick(words: Sequence[str], rng: np.random.Generator) -> str:
    return words[int(rng.integers(len(words)))]


def _draw_name(languages: Sequence[Language], rng: np.random.Generator) -> tuple[str, Language, str]:
    language = languages[int(rng.integers(len(languages)))]
    form = _pick(list(language.legal_forms), rng)
    name = _pick(language.patterns, rng).format(
        name=_pick(language.starts.split(), rng) + _pick(language.ends.split(), rng),
        trade=_pick(language.trades.split(), rng).replace("_", " "),
        town=_pick(language.towns.split(), rng).replace("_", " "),
        form=form,
    )
    return name, language, form


def _respell(name: str, language: Language, form: str, rng: np.random.Generator) -> str:
    """Return the name as another register spells it."""
    if rng.random() < 0.5:
        name = f"{name.removesuffix(form)}{_pick(language.legal_forms[form], rng)}".rstrip()
    if rng.random() < 0.35:
        name = name.translate(TRANSLITERATED) if rng.random() < 0.5 else _strip_accents(name)
    words = name.split()
    if len(words) > 3 and rng.random() < 0.15:
        words.pop(int(rng.integers(len(words))))
    if rng.random() < 0.1:
        words = [*words[1:], words[0]]
    if rng.random() < 0.1:
        place = int(rng.integers(len(words)))
        words[place] = f"{words[place][:4]}." if len(words[place]) > 6 else words[place]
    if rng.random() < 0.08:
        words = [words[0] + words[1], *words[2:]]
    if rng.random() < 0.12:
        words.append(_pick(language.towns.split(), rng))
    name = " ".join(words)
    for _ in range(int(rng.choice(4, p=[0.4, 0.35, 0.15, 0.1]))):
        name = _mistype(name, rng)
    return name.upper() if rng.random() < 0.15 else name


def _respell_by_ear(name: str, language: Language, form: str, rng: np.random.Generator) -> str:
    """Return the name as a clerk of another register wrote it down."""
    if rng.random() < 0.5:
        name = f"{name.removesuffix(form)}{_pick(language.legal_forms[form], rng)}".rstrip()
    if rng.random() < 0.4:
        name = _strip_accents(name.replace("ı", "i"))
    for _ in range(int(rng.choice(4, p=[0.35, 0.35, 0.2, 0.1]))):
        possible = [pair for pair in MISHEARD if pair[0] in name]
        sound, written = possible[int(rng.integers(len(possible)))]
        at = int(rng.choice([place for place in range(len(name)) if name.startswith(sound, place)]))
        name = name[:at] + written + name[at + len(sound) :]
    words = name.split()
    if len(words) > 3 and rng.random() < 0.08:
        words[1] = f"{words[1][0]}."
    if rng.random() < 0.06:
        words[0] = f"{words[0][:3]} {words[0][3:]}".strip()
    if rng.random() < 0.08:
        words = [f"{words[-1]},", *words[:-1]]
    if rng.random() < 0.1:
        words.append(f"({_pick(language.towns.split(), rng).replace('_', ' ')})")
    name = " ".join(words)
    name = name[:FORM_WIDTH].rstrip() if rng.random() < 0.1 else name
    return name.lower() if rng.random() < 0.1 else name


def _strip_accents(text: str) -> str:
    bare = unicodedata.normalize("NFD", text.translate(STROKES).replace("ß", "ss"))
    return "".join(char for char in bare if not unicodedata.combining(char))


def _mistype(name: str, rng: np.random.Generator) -> str:
    """Return the name with one slip: a letter left out, doubled, exchanged with the next, mistyped or misread."""
    place = int(rng.integers(len(name)))
    head, letter, tail = name[:place], name[place], name[place + 1 :]
    slip = rng.integers(5)
    if slip == 0:
        return head + tail
    if slip == 1:
        return head + letter + letter + tail
    if slip == 2:
        return head + tail[:1] + letter + tail[1:]
    if slip == 3:
        row = next((row for row in KEYBOARD if letter.lower() in row), None)
        if row is None:
            return name
        at = row.index(letter.lower())
        return head + row[at + 1 if at == 0 or (at + 1 < len(row) and rng.random() < 0.5) else at - 1] + tail
    possible = [pair for pair in MISREAD if pair[0] in name]
    seen, read = possible[int(rng.integers(len(possible)))] if possible else ("", "")
    return name.replace(seen, read, 1) if seen else name
