"""Disambiguation pages: lists of the things that share a name.

MediaWiki marks such a page with `__DISAMBIG__`, which nearly always comes out of a template. A dump does not hold
what templates contain, so the templates are known by name. The names are those that the wikis list on their page
`MediaWiki:Disambiguationspage`; templates on other pages that point to a disambiguation (such as
`{{disambiguation needed}}`, `{{Voir homonymes}}`, `{{Nota disambigua}}`) are not among them.
"""

from __future__ import annotations

import re

from data_prep.text.wiki_templates import template_key
from data_prep.text.wikitext_source import take_extensions

_MARK = re.compile(r"__DISAMBIG__")
_TEMPLATE = re.compile(r"\{\{([^{}|<>\[\]#]{1,80})[|}]")
_ENGLISH = re.compile(
    r"(?:[\w-]+ )*?(?:disambig(?:uation)?|disamb|dab)(?: ?page| ?cleanup|-cleanup)?|\w{2,8}disambig"
)
"""`{{Disambiguation}}`, `{{school disambiguation}}`, `{{disambig-cleanup}}`, `{{TLAdisambig}}`; most wikis know
`{{disambig}}` too."""
_NO_MARK = re.compile(r"(?:r (?:to|from) |nota |ver |voir |see |need|link |unlinked |other |use ).*")
_NAMES = frozenset(
    name.strip()
    for names in (
        # English, by kind
        "hndis, hndis-cleanup, geodis, geo-dis, numberdis, mathdab, mathdis, schooldis, roaddis",
        "mil-unit-dis, letter-numbercombdisambig, letter-number combination disambiguation",
        "hospitaldis, wp-disambig, sdab, dp",
        # Germanic
        "begriffsklärung, bkl, dpintro, doorverwijspagina, förgrensning, gren, grensida",
        "förgreningssida, namnförgrensning, flertydig, flertydigtitel, peker, pekerside",
        "fleirtyding, aðgreining, dubbelsinnig",
        # Romance and Latin
        "homonymie, homonymes, toponymie, patronymie, paronymie, personnes homonymes",
        "titres homonymes, villes homonymes, films homonymes, communes françaises homonymes",
        "batailles homonymes, unités homonymes, saints homonymes, desambiguación, desambiguacion",
        "des, disambigua, desambiguação, desambiguacao, desambiguació, desambigua, homónimos",
        "dezambiguizare, dezambig, discretiva",
        # Slavic and Baltic
        "ujednoznacznienie, strona ujednoznaczniająca, rozcestník, rozlišovacia stránka",
        "неоднозначность, многозначность, неоднозначність, багатозначність, пояснение",
        "вишезначна одредница, višeznačna odrednica, razdvojba, čvor, razločitev, појаснување",
        "неадназначнасць, nuorodinis, nuorodinis puslapis, nozīmju atdalīšana",
        # Other European
        "täsmennyssivu, täsmennys, egyért, egyértelmű, egyértelműsítő lap, egyértelműsítés",
        "täpsustuslehekülg, täpsustus, argipen, αποσαφήνιση, αποσαφ, anlam ayrımı, gwahaniaethu",
        "idirdhealú, kthjellim, apartigilo, բազմիմաստություն, მრავალმნიშვნელოვანი",
        # Asian
        "aimai, 曖昧さ回避, 人名の曖昧さ回避, 地名の曖昧さ回避, 消歧義, 消歧义, 消歧義頁, 消歧义页",
        "地名消歧义, 人名消歧义, 人名消歧義, 地名消歧義, 동음이의, 동음이의어 문서, 인명 동음이의",
        "지명 동음이의, định hướng, trang định hướng, nyahkekaburan, פירושונים, توضيح, صفحة توضيح",
        "ابهام‌زدایی, แก้กำกวม, बहुविकल्पी, দ্ব্যর্থতা নিরসন, dəqiqləşdirmə, айрық",
        "பக்கவழி நெறிப்படுத்தல்",
    )
    for name in names.split(",")
)


def is_disambiguation(wikitext: str) -> bool:
    """Whether a page says that it is a disambiguation page; comments, references and the like say nothing."""
    source, _ = take_extensions(wikitext)
    return bool(_MARK.search(source)) or any(map(_is_marking, _TEMPLATE.findall(source)))


def _is_marking(name: str) -> bool:
    key = template_key(name)
    return key in _NAMES or bool(_ENGLISH.fullmatch(key) and not _NO_MARK.fullmatch(key))
