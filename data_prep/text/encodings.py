"""Bytes to text: byte order marks, UTF-8, declared encodings, one detector, and what was decoded wrongly once."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from data_prep.text import UnreadableError, clean_text
from data_prep.text.code_pages import advice, best_reading, group_of, readings_by_group

AUTO = "auto"
"""The encoding setting that detects the encoding from the bytes."""
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WESTERN = "cp1252"
_MULTI_BYTE = {"ja": ("cp932", "euc_jp"), "ko": ("cp949", "johab"), "zh": ("gb18030", "big5hkscs")}
"""By language, its Windows code page and what else it was written in. They share most bytes, so that hardly a byte is
wrong when one is read by another. After the table of suggested default encodings in the HTML standard (13.2.3.2,
"Determining the character encoding")."""
_WITHOUT_MARK = ("utf-16-le", "utf-16-be")
_FREQUENT = {
    "ja": frozenset(map(chr, range(0x3041, 0x30FF))),
    "ko": frozenset(map(chr, range(0xAC00, 0xD7A4))),
    "zh": frozenset(
        "的一是不了在人有我他这這个個们們中来來上大为為国國地到以说說时時要就出会會可也你对對生能而子那得于於之其者曰無无"
    ),
}
_LEAST_FREQUENT = {"ja": 0.1, "ko": 0.5, "zh": 0.04}
"""Least share of these among the characters beyond ASCII for a text of the language. A wrong encoding gives
rare Chinese characters, mostly."""
_ESCAPES = re.compile(rb"\x1b(?:\$[@AB]|\$\([@ABCDO-Q]|\$\)C|\([IJ])")
"""Escape sequences of ISO 2022 (RFC 1468, 1554, 1557)."""
_ISO_2022 = ("iso2022_jp_ext", "iso2022_jp_2", "iso2022_jp_2004", "iso2022_kr")
_HZ = re.compile(rb"~\{(?:[!-w][!-~])+~\}")
"""Chinese characters among ASCII (RFC 1843)."""
_HZ_LEAST = 16
"""Bytes of them that are no accident."""
_KOREAN_DESIGNATION = b"\x1b$)C"
_ASCII = bytes(range(128))
_SAMPLE_BYTES = 1 << 16
_DETECTED_BYTES = 1 << 16
_WHOLE_SHARE = 0.99
"""From so probable a reading on, the whole text is in its encoding."""
_MAX_CONTROL_SHARE = 0.05
"""Text has far fewer control characters; random bytes have an eighth."""
_CONTROL = bytes({*range(32)} - {*b"\t\n\v\f\r\x1a"})
_LEADS = "ÂÃÄÅÎÏÐÑâïð"
_CONTINUATION = "[\x80-\xbf" + bytes(range(0x80, 0xA0)).decode(_WESTERN, "ignore") + "]"
_MOJIBAKE = re.compile(
    f"[ÂÃÄÅÎÏÐÑ]{_CONTINUATION}|[âï]{_CONTINUATION}{{2}}|ð{_CONTINUATION}{{3}}",
)
"""UTF-8 whose bytes were read as Windows-1252: `Ã©` for é, `â€™` for a curly apostrophe."""
_MAX_WRONG_SHARE = 0.001
"""Pages with more wrong bytes in their declared encoding are in another one; fewer are slips, or a cut at the end."""


def known_encoding(encoding: str) -> str:
    """The encoding's usual name, or `auto`.

    Raises:
        ValueError: Python knows no text encoding of this name.
    """
    if encoding == AUTO:
        return encoding
    try:
        b"\0\0\0\0".decode(encoding, "ignore")
        return codecs.lookup(encoding).name
    except LookupError:
        message = f"unknown encoding {encoding!r}; name one that Python knows, such as cp1250, or auto"
        raise ValueError(message) from None


def decode_text(data: bytes, encoding: str, lang: str) -> str:
    """The clean text of `data`, without byte order mark.

    Args:
        encoding: how bytes without byte order mark are read, strictly. `auto` takes UTF-16 where every other byte
            is often zero, and else UTF-8. Bytes that are not valid UTF-8, wherever they stand, are read by the
            code page of `lang`, or by an older encoding of it that the whole text is in; and what was decoded
            wrongly before (`â€™`) is repaired.
        lang: ISO 639-1 code.

    Raises:
        UnreadableError: the bytes are no text, or `auto` finds no probable encoding of `lang`.
    """
    text = _decode(data, encoding, lang).replace("\r\n", "\n")
    encoded = text.encode("utf-8", "replace")
    num_control = len(encoded) - len(encoded.translate(None, _CONTROL))
    if num_control > _MAX_CONTROL_SHARE * len(text):
        raise UnreadableError(f"no text: {num_control} of {len(text)} characters are control characters")
    if encoding == AUTO and any(lead in text for lead in _LEADS):
        text = repair_mojibake(text)
    return clean_text(text, keep_chapters=True)


def _decode(data: bytes, encoding: str, lang: str) -> str:
    for mark, marked_encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            lenient = encoding == AUTO and marked_encoding == "utf-8"
            start = len(mark)
            return _mixed(data[start:], lang) if lenient else _strict(data[start:], marked_encoding, start)
    if encoding != AUTO:
        return _strict(data, encoding)
    if utf16 := _utf16_without_mark(data):
        return _strict(data, utf16)
    return _in_seven_bits(data) if data.isascii() else _mixed(data, lang)


def decode_html(data: bytes, http_charset: str | None, lang: str = "en") -> str:
    """The characters of a page in whatever encoding.

    A byte order mark decides; then bytes that are valid UTF-8, whatever is declared; then the HTTP header, then the
    page's `<meta>`, each unless too many bytes contradict; then a guess by the bytes; then what `lang` is written in.
    What cannot be decoded becomes U+FFFD.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark) and not encoding.startswith("utf-32"):
            return data[len(mark) :].decode(encoding, "replace")
    if b"\0" not in data and b"\x1b" not in data:  # no UTF-16, no ISO 2022
        with suppress(UnicodeDecodeError):
            return data.decode("utf-8")
    declared = [http_charset, detect_encoding(data, from_html_meta=True)]
    for name in filter(None, declared):
        if (text := decode_declared(data, name)) is not None:
            return text
    guess = detect_encoding(data)
    if guess and guess != "utf-8" and (text := decode_declared(data, guess)) is not None:
        return text
    text = data.decode("utf-8", "replace")
    if _has_few_wrong(text):
        return text
    for each in dict.fromkeys((lang, "ko")):  # the guess knows no Korean encoding
        if each in _MULTI_BYTE:
            with suppress(UnreadableError):
                return data.decode(_multi_byte_encoding(data, each, _first_wide(data)), "replace")
        elif (reading := best_reading(data, each)) is not None:
            return data.decode(reading.encoding, "replace")
    return text


def decode_declared(data: bytes, name: str) -> str | None:
    """Text in an encoding as the web names them; None if it is unknown or too many bytes contradict."""
    encoding = map_encoding_to_html5(name, fallback_utf8=False)
    try:
        text = data.decode(encoding, "replace") if encoding else None
    except LookupError:
        return None
    return text if text is not None and _has_few_wrong(text) else None


def _has_few_wrong(text: str) -> bool:
    return text.count("\ufffd") <= max(1, _MAX_WRONG_SHARE * len(text))


def utf16_encoding(head: bytes) -> str | None:
    """The byte order of UTF-16 text that starts with a byte order mark or `<`; None for other encodings."""
    starts = {b"\xff\xfe": "utf-16-le", b"<\0": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\0<": "utf-16-be"}
    return starts.get(head[:2])


def probable_encodings(data: bytes) -> list[str]:
    """Encodings that make text of some language of bytes that are not UTF-8, the likeliest first."""
    found = []
    for lang in _MULTI_BYTE:
        with suppress(UnreadableError):
            encoding = _multi_byte_encoding(data, lang, _first_wide(data))
            _strict(data, encoding)
            found.append(encoding)
    found += [reading.encoding for reading in readings_by_group(data) if reading.is_probable]
    return list(dict.fromkeys(found))


def _first_wide(data: bytes) -> int:
    return len(data) - len(data.lstrip(_ASCII))


def _in_seven_bits(data: bytes) -> str:
    """ASCII, or an encoding of East Asian text that looks like it.

    Raises:
        UnreadableError: its character sets change, and none of the encodings that do so agrees.
    """
    if escape := _ESCAPES.search(data):
        for encoding in _ISO_2022 if _KOREAN_DESIGNATION not in data else _ISO_2022[::-1]:
            with suppress(UnicodeDecodeError):
                return data.decode(encoding)
        raise UnreadableError(
            f"damaged ISO-2022; name its encoding, such as {_ISO_2022[0]}, in `encoding`", escape.start()
        )
    if sum(map(len, _HZ.findall(data))) >= _HZ_LEAST:
        with suppress(UnicodeDecodeError):
            return data.decode("hz")
    return data.decode("ascii")


def _strict(data: bytes, encoding: str, offset: int = 0) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnreadableError(f"invalid {error.encoding}: {error.reason}", offset + error.start) from None


def _utf16_without_mark(data: bytes) -> str | None:
    """The byte order of UTF-16: spaces, line ends and ASCII letters have a zero byte on one side only."""
    sample = data[:_SAMPLE_BYTES]
    first, second = sample[0::2].count(0), sample[1::2].count(0)
    least = max(2, len(sample) // 200)
    if second >= least and first * 50 <= second:
        return "utf-16-le"
    if first >= least and second * 50 <= first:
        return "utf-16-be"
    return None


def _mixed(data: bytes, lang: str) -> str:
    """Decode UTF-8; invalid bytes in it are read with a code page of the language.

    Raises:
        UnreadableError: in no encoding of the language it is probable.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        first = error.start
    code_page = next(iter(_MULTI_BYTE.get(lang, group_of(lang).encodings)))
    replaced = data.decode("utf-8", "replace")
    num_invalid = replaced.count("\ufffd")
    num_wide = len(replaced) - len(replaced.encode("ascii", "ignore")) - num_invalid
    if lang in _MULTI_BYTE:
        is_other = num_invalid > max(num_wide, 0.01 * len(data))
        if is_other:
            return _strict(data, _multi_byte_encoding(data, lang, first))
    elif num_invalid > num_wide:
        reading = best_reading(data, lang)
        if reading is None:
            raise UnreadableError(advice(data, lang), first)
        code_page = reading.encoding
        if reading.share >= _WHOLE_SHARE:  # the valid UTF-8 is so by chance
            return data.decode(code_page, "replace")
    return data.decode("utf-8", _errors_read_by(code_page))


def _multi_byte_encoding(data: bytes, lang: str, first: int) -> str:
    """The encoding that makes Chinese, Japanese or Korean text likeliest, by what follows its first byte that is no
    UTF-8."""
    start = first & ~1  # UTF-16 goes by pairs
    sample, wanted = data[start : start + _DETECTED_BYTES], _FREQUENT[lang]
    shares = {}
    for encoding in (*_MULTI_BYTE[lang], *_WITHOUT_MARK):
        text = sample.decode(encoding, "replace")
        wide = [character for character in text if not character.isascii()]
        shares[encoding] = sum(map(wanted.__contains__, wide)) / max(1, len(wide) + 9 * text.count("\ufffd"))
    likeliest = max(shares, key=shares.__getitem__)
    if shares[likeliest] < _LEAST_FREQUENT[lang]:
        raise UnreadableError(advice(data, lang), first)
    return likeliest


def _errors_read_by(code_page: str) -> str:
    """Name of the decoder's error handler that reads invalid bytes by a code page."""

    def read_by_code_page(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        return error.object[error.start : error.end].decode(code_page, "replace"), error.end

    name = f"cloze-read-by-{code_page}"
    codecs.register_error(name, read_by_code_page)
    return name


def repair_mojibake(text: str, suspect: re.Pattern[str] = _MOJIBAKE) -> str:
    """Undo decoding UTF-8 as another encoding, line by line, where a line shows it and ftfy agrees.

    Args:
        suspect: found in every line that may need it; ftfy takes several times as long to look.
    """
    if text.isascii() or not suspect.search(text):
        return text
    from ftfy import fix_encoding
    from ftfy.badness import is_bad

    lines = text.split("\n")
    return "\n".join(
        [fix_encoding(line) if suspect.search(line) and is_bad(line) else line for line in lines]
    )
