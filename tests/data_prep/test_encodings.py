"""Bytes to text: code pages, mixtures, UTF-16 without a mark, mojibake, and what is no text."""

import codecs
import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.text import clean_text
from data_prep.text.encodings import DecodingError, decode_text, repair_mojibake

ENGLISH = "“It’s naïve,” said Zoë – the café was closed.\n" * 3
TEXTS = {
    "en": ENGLISH,
    "de": "Die Straße führt über den Fluß; dort wohnt „Jörg“.",
    "pl": "Zażółć gęślą jaźń, powiedział Łukasz.",
    "ru": "Привет, мир. Это старая книга.",
    "el": "Καλημέρα κόσμε, είπε η γάτα.",
    "ja": "吾輩は猫である。名前はまだ無い。",
    "zh": "道可道，非常道。名可名，非常名。",
}
CODE_PAGES = {
    "en": "cp1252",
    "de": "latin-1",
    "pl": "cp1250",
    "ru": "cp1251",
    "el": "cp1253",
    "ja": "cp932",
    "zh": "gb18030",
}

DECLARATION = {
    "en": (
        "All human beings are born free and equal in dignity and rights. “They are endowed with reason,” "
        "said Zoë, the naïve friend’s café was closed – and £5 were due."
    ),
    "fr": (
        "Tous les êtres humains naissent libres et égaux en dignité et en droits. Ils sont doués de "
        "raison et de conscience et doivent agir les uns envers les autres dans un esprit de fraternité. "
        "Où ça ? Là-bas, à l'hôtel."
    ),
    "de": (
        "Alle Menschen sind frei und gleich an Würde und Rechten geboren. Sie sind mit Vernunft und "
        "Gewissen begabt und sollen einander im Geist der Brüderlichkeit begegnen. Die Straße führt über "
        "den Fluß, größer, schön."
    ),
    "es": (
        "Todos los seres humanos nacen libres e iguales en dignidad y derechos y, dotados como están de "
        "razón y conciencia, deben comportarse fraternalmente los unos con los otros. ¿Qué pasó mañana? "
        "¡El niño comió aquí!"
    ),
    "pt": (
        "Todos os seres humanos nascem livres e iguais em dignidade e em direitos. Dotados de razão e de "
        "consciência, devem agir uns para com os outros em espírito de fraternidade. Não há coração, você"
        " está aí."
    ),
    "it": (
        "Tutti gli esseri umani nascono liberi ed eguali in dignità e diritti. Essi sono dotati di "
        "ragione e di coscienza e devono agire gli uni verso gli altri in spirito di fratellanza. Perché "
        "è così, già più città."
    ),
    "sv": (
        "Alla människor är födda fria och lika i värde och rättigheter. De har utrustats med förnuft och "
        "samvete och bör handla gentemot varandra i en anda av gemenskap. Åsa går på ön."
    ),
    "da": (
        "Alle mennesker er født frie og lige i værdighed og rettigheder. De er udstyret med fornuft og "
        "samvittighed, og de bør handle mod hverandre i en broderskabets ånd."
    ),
    "fi": (
        "Kaikki ihmiset syntyvät vapaina ja tasavertaisina arvoltaan ja oikeuksiltaan. Heille on annettu "
        "järki ja omatunto, ja heidän on toimittava toisiaan kohtaan veljeyden hengessä. Äiti söi "
        "työpöydällä."
    ),
    "is": (
        "Hver maður er borinn frjáls og jafn öðrum að virðingu og réttindum. Menn eru gæddir vitsmunum og"
        " samvisku, og ber þeim að breyta bróðurlega hverjum við annan."
    ),
    "pl": (
        "Wszyscy ludzie rodzą się wolni i równi pod względem swej godności i swych praw. Są oni obdarzeni"
        " rozumem i sumieniem i powinni postępować wobec innych w duchu braterstwa. Zażółć gęślą jaźń, "
        "powiedział Łukasz."
    ),
    "cs": (
        "Všichni lidé se rodí svobodní a sobě rovní co do důstojnosti a práv. Jsou nadáni rozumem a "
        "svědomím a mají spolu jednat v duchu bratrství. Příliš žluťoučký kůň úpěl ďábelské ódy."
    ),
    "hu": (
        "Minden emberi lény szabadon születik és egyenlő méltósága és joga van. Az emberek, ésszel és "
        "lelkiismerettel bírván, egymással szemben testvéri szellemben kell hogy viseltessenek. Őrült "
        "tűzfű."
    ),
    "ro": (
        "Toate fiinţele umane se nasc libere şi egale în demnitate şi în drepturi. Ele sunt înzestrate cu"
        " raţiune şi conştiinţă şi trebuie să se comporte unele faţă de altele în spiritul fraternităţii."
    ),
    "hr": (
        "Sva ljudska bića rađaju se slobodna i jednaka u dostojanstvu i pravima. Ona su obdarena razumom "
        "i sviješću i trebaju jedna prema drugima postupati u duhu bratstva. Čovjek želi kuću."
    ),
    "sl": (
        "Vsi ljudje se rodijo svobodni in imajo enako dostojanstvo in enake pravice. Obdarjeni so z "
        "razumom in vestjo in bi morali ravnati drug z drugim kakor bratje. Človek želi hišo, še čaka, "
        "življenje je težko."
    ),
    "tr": (
        "Bütün insanlar hür, haysiyet ve haklar bakımından eşit doğarlar. Akıl ve vicdana sahiptirler ve "
        "birbirlerine karşı kardeşlik zihniyeti ile hareket etmelidirler. İstanbul'da çiğdem gördüm."
    ),
    "lt": (
        "Visi žmonės gimsta laisvi ir lygūs savo orumu ir teisėmis. Jiems suteiktas protas ir sąžinė ir "
        "jie turi elgtis vienas kito atžvilgiu kaip broliai. Ąžuolas šaukė, ėjo į čia, šį žodį."
    ),
    "lv": (
        "Visi cilvēki piedzimst brīvi un vienlīdzīgi savā pašcieņā un tiesībās. Viņi ir apveltīti ar "
        "saprātu un sirdsapziņu, un viņiem jāizturas citam pret citu brālības garā. Ķēniņš ļoti ģērbās."
    ),
    "et": (
        "Kõik inimesed sünnivad vabadena ja võrdsetena oma väärikuselt ja õigustelt. Neile on antud "
        "mõistus ja südametunnistus ja nende suhtumist üksteisesse peab kandma vendluse vaim."
    ),
    "ru": (
        "Все люди рождаются свободными и равными в своем достоинстве и правах. Они наделены разумом и "
        "совестью и должны поступать в отношении друг друга в духе братства."
    ),
    "uk": (
        "Всі люди народжуються вільними і рівними у своїй гідності та правах. Вони наділені розумом і "
        "совістю і повинні діяти у відношенні один до одного в дусі братерства. Її їжа."
    ),
    "bg": (
        "Всички хора се раждат свободни и равни по достойнство и права. Те са надарени с разум и съвест и"
        " следва да се отнасят помежду си в дух на братство."
    ),
    "sr": (
        "Сва људска бића рађају се слободна и једнака у достојанству и правима. Она су обдарена разумом и"
        " свешћу и треба једни према другима да поступају у духу братства."
    ),
    "el": (
        "Όλοι οι άνθρωποι γεννιούνται ελεύθεροι και ίσοι στην αξιοπρέπεια και τα δικαιώματα. Είναι "
        "προικισμένοι με λογική και συνείδηση, και οφείλουν να συμπεριφέρονται μεταξύ τους με πνεύμα "
        "αδελφοσύνης."
    ),
    "he": (
        "כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון, לפיכך חובה "
        "עליהם לנהוג איש ברעהו ברוח של אחווה."
    ),
    "ar": (
        "يولد جميع الناس أحرارا متساوين في الكرامة والحقوق. وقد وهبوا عقلا وضميرا وعليهم أن يعامل بعضهم "
        "بعضا بروح الإخاء."
    ),
    "fa": (
        "تمام افراد بشر آزاد به دنيا مي آيند و از لحاظ حيثيت و حقوق با هم برابرند. همه داراي عقل و وجدان "
        "هستند و بايد نسبت به يکديگر با روح برادري رفتار کنند. گفت چه"
    ),
    "th": (
        "มนุษย์ทั้งหลายเกิดมามีอิสระและเสมอภาคกันในเกียรติศักดิ์และสิทธิ ต่างมีเหตุผลและมโนธรรม "
        "และควรปฏิบัติต่อกันด้วยเจตนารมณ์แห่งภราดรภาพ"
    ),
    "vi": (
        "Tất cả mọi người sinh ra đều được tự do và bình đẳng về nhân phẩm và quyền. Mọi con người đều "
        "được tạo hóa ban cho lý trí và lương tâm và cần phải đối xử với nhau trong tình bằng hữu."
    ),
    "ja": (
        "すべての人間は、生まれながらにして自由であり、かつ、尊厳と権利とについて平等である。人間は、理性と良心とを授けられており、互いに同胞の精神をもって行動しなければならない。"
    ),
    "ko": (
        "모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 인간은 천"
        "부적으로 이성과 양심을 부여받았으며 서로 형제애의 정신으로 행동하여야 한다."
    ),
    "zh": (
        "人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。这是我们的世界，大家都在这里说话，来到中国的人有很多。"
    ),
    "zh-t": (
        "人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。這是我們的世界，大家都在這裡說話，來到中國的人有很多。"
    ),
    "eo": (
        "Ĉiuj homoj estas denaske liberaj kaj egalaj laŭ digno kaj rajtoj. Ili posedas racion kaj "
        "konsciencon, kaj devus konduti unu al alia en spirito de frateco. Ĝi ŝajnas ĉarma ĵaŭde."
    ),
}
"""Of human rights, its first article, and more that has rare letters."""
ENCODINGS = {
    "en": "cp1252 mac-roman cp850 cp437",
    "fr": "cp1252 iso8859-1 iso8859-15 mac-roman cp850 cp437",
    "de": "iso8859-1 cp850 cp437 mac-roman iso8859-15",
    "es": "iso8859-1 cp850 cp437 mac-roman",
    "pt": "iso8859-1 cp850 mac-roman cp860",
    "it": "iso8859-1 cp850 mac-roman",
    "sv": "iso8859-1 cp850 cp437 mac-roman iso8859-4 iso8859-10",
    "da": "iso8859-1 cp850 cp865 mac-roman",
    "fi": "iso8859-1 cp850 cp437",
    "is": "iso8859-1 cp861 cp850 mac-iceland",
    "pl": "cp1250 iso8859-2 cp852 mac-latin2 iso8859-16 cp1257",
    "cs": "cp1250 iso8859-2 cp852 mac-latin2",
    "hu": "cp1250 iso8859-2 cp852 mac-latin2",
    "ro": "cp1250 iso8859-2 cp852",
    "hr": "cp1250 iso8859-2 cp852",
    "sl": "cp1250 iso8859-2 cp852 mac-latin2",
    "tr": "cp1254 iso8859-9 cp857 mac-turkish iso8859-3",
    "lt": "cp1257 iso8859-13 iso8859-4 cp775",
    "lv": "cp1257 iso8859-13 iso8859-4 cp775",
    "et": "cp1257 iso8859-13 iso8859-4 iso8859-15 iso8859-1 cp775",
    "ru": "cp1251 koi8-r cp866 iso8859-5 mac-cyrillic cp855",
    "uk": "cp1251 koi8-u iso8859-5 cp1125 mac-cyrillic",
    "bg": "cp1251 iso8859-5 koi8-r cp866 mac-cyrillic",
    "sr": "cp1251 iso8859-5 cp855 mac-cyrillic",
    "el": "cp1253 iso8859-7 cp737 cp869 mac-greek",
    "he": "cp1255 iso8859-8 cp862",
    "ar": "cp1256 iso8859-6 cp720",
    "fa": "cp1256",
    "th": "cp874 tis-620 iso8859-11",
    "vi": "cp1258",
    "ja": "cp932 euc_jp iso2022_jp iso2022_jp_2 utf-16-le utf-16-be",
    "ko": ("cp949 euc_kr johab iso2022_kr utf-16-le"),
    "zh": "gb18030 gbk gb2312 hz utf-16-le",
    "zh-t": "big5 big5hkscs cp950 gb18030 utf-16-be",
    "eo": "iso8859-3",
}


def auto(data: bytes, lang: str = "en") -> str:
    return decode_text(data, "auto", lang)


@given(text=st.text(st.characters(exclude_categories=("Cc", "Cs"))))
def test_utf8_is_never_taken_for_anything_else(text):
    assert auto(text.encode()) == clean_text(repair_mojibake(text.removeprefix("\ufeff")))


@pytest.mark.parametrize("lang", TEXTS)
def test_the_code_page_of_the_language_is_used_where_text_is_not_utf8(lang):
    text = TEXTS[lang].replace("„", '"').replace("“", '"') if lang == "de" else TEXTS[lang]
    assert auto(text.encode(CODE_PAGES[lang]), lang) == text.strip()


@pytest.mark.parametrize("lang", TEXTS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be"])
def test_unicode_is_told_with_and_without_byte_order_mark(encoding, lang):
    text = TEXTS[lang] + "\nA line in ASCII.\n"
    assert auto(text.encode(encoding), lang) == text.strip()


def test_a_mixture_of_encodings_is_read_line_by_line_and_within_a_line():
    lines = [line.encode(["utf-8", "cp1252"][number % 2]) for number, line in enumerate(ENGLISH.split("\n"))]
    assert auto(b"\n".join(lines)) == ENGLISH.strip()
    assert auto("café ".encode() + "naïve".encode("cp1252")) == "café naïve"
    assert auto(codecs.BOM_UTF8 + "café ".encode() + b"na\xefve") == "café naïve"


def test_a_damaged_byte_does_not_change_the_rest_of_a_book_in_any_script():
    data = (TEXTS["ru"] * 10).encode()
    at = len("Привет".encode())
    damaged = data[:at] + b"\xff" + data[at:]
    assert auto(damaged, "en").replace("ÿ", "") == TEXTS["ru"] * 10


def test_mojibake_is_repaired_in_its_lines_only():
    good = "Â was a letter, LIBERTÉ» and „Spaß»"
    bad = "Itâ€™s naÃ¯ve â€œquotedâ€\x9d"
    assert auto(f"{good}\n{bad}\n{good}".encode()) == f"{good}\nIt’s naïve “quoted”\n{good}"


def test_real_letters_are_no_mojibake():
    for text in ("TÂCHE, ÂGE; Ñandú, São Paulo — Ðe Ïle", *TEXTS.values()):
        assert repair_mojibake(text) == text


def test_a_named_encoding_is_strict_and_repairs_nothing():
    assert decode_text("Itâ€™s".encode(), "utf-8", "en") == "Itâ€™s"
    with pytest.raises(DecodingError) as caught:
        decode_text(b"good \xff", "utf-8", "en")
    assert caught.value.offset == 5


@pytest.mark.parametrize(
    "data",
    [
        b"\0" * 1000,
        b"\x01\x02\x03" * 10,
        random.Random(1).randbytes(5000),
        TEXTS["ru"].encode("cp1251") * 20,
        b"\xff\xfe" + b"\0\xd8" * 20,
        "even".encode("utf-16-le") * 3 + b"x",
    ],
    ids=["zeros", "control", "random", "foreign code page", "lone surrogates", "half a character"],
)
def test_what_is_no_text_of_the_language_is_refused(data):
    with pytest.raises(DecodingError):
        auto(data)


def cp1258_letters(text: str) -> str:
    """Vietnamese as Windows-1258 has it: tones are characters of their own."""
    tones = "\u0300\u0301\u0303\u0309\u0323"
    parts = [unicodedata.normalize("NFD", character) for character in text]
    return "".join(
        unicodedata.normalize("NFC", "".join(mark for mark in part if mark not in tones))
        + "".join(mark for mark in part if mark in tones)
        for part in parts
    )


@pytest.mark.parametrize("lang", DECLARATION)
def test_every_encoding_of_a_language_is_read_right_and_without_the_language_right_or_not_at_all(lang):
    refused = []
    for encoding in ENCODINGS[lang].split():
        text = cp1258_letters(DECLARATION[lang]) if encoding == "cp1258" else DECLARATION[lang]
        text = text.encode(encoding, "ignore").decode(encoding)
        for lines in (1, 20):
            data = "\n".join([text] * lines).encode(encoding)
            expected = data.decode(encoding)
            try:
                assert auto(data, lang[:2]) == expected, encoding
            except DecodingError:
                assert lines == 1, encoding  # too little to be told UTF-16 or a rare encoding
            try:
                assert auto(data, "en") == expected, encoding
            except DecodingError as error:
                refused.append(error.reason)
    assert all("name it in `encoding`" in reason for reason in refused)


@pytest.mark.parametrize(
    ("encoded", "plain"),
    [
        (
            "µ¸¶·¹¨»¾¼½Æ©ÇÊÈÉË®ÌÐÎÏÑªÒÕÓÔÖ×ÝØÜÞßãáâä«åèæçé¬êíëìîïóñòô\xadõøö÷ùúýûüþ",
            "àáảãạăằắẳẵặâầấẩẫậđèéẻẽẹêềếểễệìíỉĩịòóỏõọôồốổỗộơờớởỡợùúủũụưừứửữựỳýỷỹỵ",
        ),
        (
            "àáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÕ¡¢£¤¥¦§¨©ª«¬\xad®¯°±²¸¶·½¾ßÑ×ØµÞÏÛÖÜ",
            "àáâãảăữẫèéêẻìíĩỉđựòóôõỏọụùúũủýợạắằặấầẩậẽẹếềểễệốồổỗịờởơớưừứửộỡỳỹỷỵ".replace("ừứ", "ứừ"),
        ),
    ],
    ids=["TCVN-5712", "VISCII"],
)
def test_encodings_that_python_does_not_know_are_refused_by_name(encoded, plain):
    data = DECLARATION["vi"].lower().translate(str.maketrans(plain, encoded)).encode("latin-1", "replace")
    for lang in ("vi", "en", "fr"):
        with pytest.raises(DecodingError, match="TCVN-5712, VISCII" if lang == "vi" else "in `encoding`"):
            auto(data, lang)


def test_one_wrong_letter_does_not_refuse_a_book_and_many_do():
    book = ("It rained in London, and nobody minded. " * 400).encode()
    assert auto(book + b"tre Fran\xc1ais").endswith("FranÁais")
    with pytest.raises(DecodingError, match="cp1250"):
        auto((DECLARATION["pl"] + " ").encode("cp1250") * 3 + book)
