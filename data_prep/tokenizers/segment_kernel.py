"""The compiled loops of `segmenters.py`; calling nothing of other files, they are never older than they are."""

from __future__ import annotations

from typing import Any

import numpy as np

from cluster.compiled_loop import compiled_loop

BREAK = -1
"""Symbol between two pieces of a word that normalisation or pre-tokenization cut in two."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_S21, _S32 = np.uint64(21), np.uint64(32)


@compiled_loop
def _slot(node: Any, code: Any, mask: np.uint64) -> np.uint64:
    key = np.uint64(node) << _S21 | np.uint64(code)
    return (key * _GOLDEN) >> _S32 & mask


@compiled_loop
def child(edges: np.ndarray, children: np.ndarray, node: Any, code: Any) -> Any:
    """The node behind the edge with a code point, or -1. Edges are int64 `node << 21 | code`, hashed by linear probing
    into a power of two of slots; -1 in those without one. `children` are the int32 nodes behind them."""
    mask = np.uint64(len(edges) - 1)
    slot = _slot(node, code, mask)
    key = node << 21 | code
    while edges[slot] >= 0:
        if edges[slot] == key:
            return np.int64(children[slot])
        slot = (slot + np.uint64(1)) & mask
    return -1


@compiled_loop
def build_trie(
    codes: np.ndarray, offsets: np.ndarray, edges: np.ndarray, children: np.ndarray, entries: np.ndarray
) -> int:
    """Fill in the trie of vocabulary entries; returns its nodes. Node 0 is the root.

    Args:
        codes: int32 code points of all entries.
        offsets: int64: entry `i` is `codes[offsets[i] : offsets[i + 1]]`.
        edges, children: see `child`; at least twice as many slots as codes, edges all -1.
        entries: [codes + 1] int32, all -1: the entry that ends at each node; of equal entries the last one.
    """
    mask = np.uint64(len(edges) - 1)
    nodes = 1
    for entry in range(len(offsets) - 1):
        node = 0
        for place in range(offsets[entry], offsets[entry + 1]):
            code = np.int64(codes[place])
            found = child(edges, children, node, code)
            if found < 0:
                slot = _slot(node, code, mask)
                while edges[slot] >= 0:
                    slot = (slot + np.uint64(1)) & mask
                edges[slot], children[slot] = node << 21 | code, nodes
                found = nodes
                nodes += 1
            node = found
        if node:
            entries[node] = entry
    return nodes


@compiled_loop
def _normalize(
    data: np.ndarray,
    mark: int,
    first_symbols: np.ndarray,
    num_symbols: np.ndarray,
    symbols: np.ndarray,
    codes: np.ndarray,
    ends: np.ndarray,
) -> int:
    """Normalise a word character by character; returns the number of codes. For arguments see `encode_unigram`."""
    count = place = mark_end = 0
    pending, begun = True, mark != BREAK
    while place < len(data):
        code = np.int64(data[place])
        size = 1 if code < 0x80 else 2 if code < 0xE0 else 3 if code < 0xF0 else 4
        if size > 1:
            code &= 0x7F >> size
            for k in range(1, size):
                code = code << 6 | np.int64(data[place + k]) & 0x3F
        place += size
        start = np.int64(first_symbols[code])
        for k in range(start, start + num_symbols[code]):
            if symbols[k] == BREAK:
                pending, mark_end = True, place
                continue
            if pending and begun:
                codes[count], ends[count] = mark, mark_end
                count += 1
            pending, begun = False, True
            codes[count], ends[count] = symbols[k], place
            count += 1
    return count


@compiled_loop
def encode_wordpiece(
    keys: np.ndarray,
    key_offsets: np.ndarray,
    flags: np.ndarray,
    first_symbols: np.ndarray,
    num_symbols: np.ndarray,
    symbols: np.ndarray,
    edges: np.ndarray,
    children: np.ndarray,
    entry_ids: np.ndarray,
    continuation: int,
    unknown: int,
    max_characters: int,
    codes: np.ndarray,
    ends: np.ndarray,
    tokens: np.ndarray,
    offsets: np.ndarray,
    state: np.ndarray,
) -> bool:
    """The longest entry at every place of a word (Wu et al. 2016); False where there is no room for more ids.

    Args:
        continuation: the node behind the prefix of entries that continue a word, or -1.
        unknown: id of a piece that is not made of entries, or longer than `max_characters`.

    All others are those of `encode_unigram`.
    """
    for word in range(state[0], len(key_offsets) - 1):
        total = offsets[word]
        if flags[word]:
            offsets[word + 1] = total
            continue
        data = keys[key_offsets[word] : key_offsets[word + 1]]
        count = _normalize(data, BREAK, first_symbols, num_symbols, symbols, codes, ends)
        if total + count > len(tokens):
            state[0] = word
            return False
        start = 0
        while start < count:
            stop = start
            while stop < count and codes[stop] != BREAK:
                stop += 1
            place, found = start, total
            while place < stop and stop - start <= max_characters:
                node = 0 if place == start else continuation
                entry = reach = -1
                for k in range(place, stop):
                    node = -1 if node < 0 else child(edges, children, node, codes[k])
                    if node < 0:
                        break
                    if entry_ids[node] >= 0:
                        entry, reach = entry_ids[node], k + 1
                if reach < 0:
                    break
                tokens[found, 0], tokens[found, 1] = entry, ends[reach - 1]
                place, found = reach, found + 1
            if place < stop:
                found = total + 1
                tokens[total, 0], tokens[total, 1] = unknown, ends[stop - 1]
            total, start = found, stop + 1
        offsets[word + 1] = total
    state[0] = len(key_offsets) - 1
    return True


@compiled_loop
def _best_path(
    codes: np.ndarray,
    edges: np.ndarray,
    children: np.ndarray,
    entry_ids: np.ndarray,
    scores: np.ndarray,
    unknown: int,
    unknown_score: float,
    best: np.ndarray,
    back: np.ndarray,
    entries: np.ndarray,
) -> None:
    """The most probable segmentation of a piece (Kudo 2018, section 3.2): `entries[place]` is the id that ends at a
    place, -1 elsewhere, and `back[place]` where it ends.

    Adds and compares in double precision and in the order of Hugging Face tokenizers, so that ties fall alike.
    """
    size = len(codes)
    best[0] = 0.0
    back[: size + 1] = -1
    for start in range(size):
        here, node, single = best[start], 0, False
        for stop in range(start + 1, size + 1):
            node = child(edges, children, node, codes[stop - 1])
            if node < 0:
                break
            entry = entry_ids[node]
            if entry >= 0:
                score = scores[entry] + here
                if back[stop] < 0 or score > best[stop]:
                    best[stop], back[stop], entries[stop] = score, start, entry
                single |= stop == start + 1
        if not single:
            score = unknown_score + here
            if back[start + 1] < 0 or score > best[start + 1]:
                best[start + 1], back[start + 1], entries[start + 1] = score, start, unknown


@compiled_loop
def _spell(
    codes: np.ndarray,
    edges: np.ndarray,
    children: np.ndarray,
    entry_ids: np.ndarray,
    unknown: int,
    byte_ids: np.ndarray,
    tokens: np.ndarray,
    place: int,
) -> int:
    """Write the ids of unknown characters beside each other; returns the place behind them."""
    node = 0
    for code in codes:
        node = -1 if node < 0 else child(edges, children, node, code)
    if node >= 0 and entry_ids[node] >= 0:
        tokens[place, 0] = entry_ids[node]
        return place + 1
    begin = place
    for code in codes:
        size = 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4
        for k in range(size - 1, -1, -1):
            byte = code >> (6 * k)
            if k < size - 1:
                byte = byte & 0x3F | 0x80
            elif size > 1:
                byte |= 0xF00 >> size & 0xFF
            if len(byte_ids) == 0 or byte_ids[byte] < 0:
                tokens[begin, 0] = unknown
                return begin + 1
            tokens[place, 0] = byte_ids[byte]
            place += 1
    return place


@compiled_loop
def encode_unigram(
    keys: np.ndarray,
    key_offsets: np.ndarray,
    flags: np.ndarray,
    mark: int,
    first_symbols: np.ndarray,
    num_symbols: np.ndarray,
    symbols: np.ndarray,
    edges: np.ndarray,
    children: np.ndarray,
    entry_ids: np.ndarray,
    scores: np.ndarray,
    unknown: int,
    unknown_score: float,
    byte_ids: np.ndarray,
    codes: np.ndarray,
    ends: np.ndarray,
    best: np.ndarray,
    back: np.ndarray,
    entries: np.ndarray,
    path: np.ndarray,
    tokens: np.ndarray,
    offsets: np.ndarray,
    state: np.ndarray,
) -> bool:
    """Encode words by their most probable segmentation; False where there is no room for more ids.

    Args:
        keys, key_offsets: uint8 UTF-8, int64: word `n` is `keys[key_offsets[n] : key_offsets[n + 1]]`.
        flags: uint8 of each word; those with any are passed over, without ids.
        mark: code point that begins every piece of a word.
        first_symbols, num_symbols: [code points] int32, uint8: a character becomes so many of `symbols` (int32).
        edges, children, entry_ids: the trie of `build_trie`, with the id of the entry that ends at each node, or -1.
        scores: [ids] float64 log-probabilities.
        unknown, unknown_score: id and log-probability of a character that is no entry.
        byte_ids: [256] int64 ids of bytes, which spell what is unknown, or none.
        codes, ends, best, back, entries, path: int32, int32, float64 and int32, with room for any word normalised.
        tokens: [tokens, 2] uint32, filled in: ids, and bytes from the start of the word to the end of each token.
        offsets: [words + 1] int64, filled in behind the first: the tokens of each word.
        state: the first word that is left to do.
    """
    for word in range(state[0], len(key_offsets) - 1):
        total = offsets[word]
        if flags[word]:
            offsets[word + 1] = total
            continue
        data = keys[key_offsets[word] : key_offsets[word + 1]]
        count = _normalize(data, mark, first_symbols, num_symbols, symbols, codes, ends)
        if total + 4 * count > len(tokens):
            state[0] = word
            return False
        start = 0
        while start < count:
            stop = start + 1
            while stop < count and codes[stop] != mark:
                stop += 1
            piece = codes[start:stop]
            _best_path(piece, edges, children, entry_ids, scores, unknown, unknown_score, best, back, entries)
            steps, place = 0, stop - start
            while place > 0:
                path[steps] = place
                steps, place = steps + 1, np.int64(back[place])
            for step in range(steps - 1, -1, -1):
                reach = np.int64(path[step])
                first, entry = total, entries[reach]
                if entry != unknown:
                    tokens[total, 0] = entry
                    total += 1
                elif step == 0 or entries[path[step - 1]] != unknown:
                    total = _spell(
                        piece[place:reach], edges, children, entry_ids, unknown, byte_ids, tokens, total
                    )
                else:
                    continue
                tokens[first:total, 1] = ends[start + reach - 1]
                place = reach
            start = stop
        offsets[word + 1] = total
    state[0] = len(key_offsets) - 1
    return True
