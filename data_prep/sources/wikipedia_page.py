"""The page that a template is on, and what its magic words show.

See https://www.mediawiki.org/wiki/Help:Magic_words. What depends on the time of reading is shown for the time at which
the page was saved: that is in the dump, and the same whenever the dump is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Page:
    """Facts about a page that templates and magic words may show."""

    title: str = ""
    lang: str = "en"
    """ISO 639-1 code of its wiki."""
    saved: datetime | None = None
    """When its revision was saved (UTC)."""


def magic_word(name: str, page: Page) -> str | None:
    """What `{{NAME}}` shows on a page; None where it is no magic word, or nothing is known to show."""
    show = _WORDS.get(name.replace("LOCAL", "CURRENT").replace("REVISION", "CURRENT"))
    if show is None or (page.saved is None and name not in _TIMELESS):
        return None
    return show(page)


def month_name(month: int, lang: str) -> str:
    """The name of a month (1 to 12), in English where no other is known."""
    return _MONTHS.get(lang, _MONTHS["en"]).split()[month - 1]


_MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
    "pl": "styczeń luty marzec kwiecień maj czerwiec lipiec sierpień wrzesień październik listopad grudzień",
    "sv": "januari februari mars april maj juni juli augusti september oktober november december",
    "bg": "януари февруари март април май юни юли август септември октомври ноември декември",
    "ru, genitive": "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
    "ru": "январь февраль март апрель май июнь июль август сентябрь октябрь ноябрь декабрь",
}


def _title(page: Page) -> str:
    return page.title


def _time(form: str) -> Callable[[Page], str]:
    return lambda page: "" if page.saved is None else form.format(page.saved)


def _month(page: Page) -> str:
    return "" if page.saved is None else month_name(page.saved.month, page.lang)


_TITLES = ("PAGENAME", "FULLPAGENAME", "BASEPAGENAME", "ROOTPAGENAME", "SUBPAGENAME")
_TITLES += ("ARTICLEPAGENAME", "SUBJECTPAGENAME")
_TIMELESS = frozenset({*_TITLES, "SITENAME", "CONTENTLANGUAGE", "CONTENTLANG"})
_WORDS: Mapping[str, Callable[[Page], str]] = MappingProxyType(
    {
        **dict.fromkeys(_TITLES, _title),
        "SITENAME": lambda page: "Wikipedia",
        "CONTENTLANGUAGE": lambda page: page.lang,
        "CONTENTLANG": lambda page: page.lang,
        "CURRENTYEAR": _time("{:%Y}"),
        "CURRENTMONTH": _time("{:%m}"),
        "CURRENTMONTH1": _time("{0.month}"),
        "CURRENTMONTHNAME": _month,
        "CURRENTMONTHNAMEGEN": _month,
        "CURRENTDAY": _time("{0.day}"),
        "CURRENTDAY2": _time("{:%d}"),
        "CURRENTTIME": _time("{:%H:%M}"),
        "CURRENTHOUR": _time("{:%H}"),
    }
)
