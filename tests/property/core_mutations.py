"""The rules of the core, each broken once."""

from __future__ import annotations

from typing import Final

from tests.property.mutation import Mutation

CORE_MUTATIONS: Final = (
    Mutation(
        "prev is certain at an equal frontier",
        "match.py",
        "(NOW if view.now > view.ts else 0)",
        "(NOW if view.now >= view.ts else 0)",
    ),
    Mutation(
        "prev was certain at an equal frontier",
        "match.py",
        "view.is_old and view.before > view.ts",
        "view.is_old and view.before >= view.ts",
    ),
    Mutation(
        "prev is decided at an equal frontier",
        "match.py",
        "of_prev = OPEN if view.now <= view.ts else 0",
        "of_prev = OPEN if view.now < view.ts else 0",
    ),
    Mutation(
        "next is certain only below the frontier",
        "match.py",
        "view.next_ts <= frontier or",
        "view.next_ts < frontier or",
    ),
    Mutation("an equal time is not next for certain", "match.py", " or view.next_ts == view.ts)", ")"),
    Mutation(
        "next was certain without its partner",
        "match.py",
        "view.is_old and view.is_next_old and _is_next_known",
        "view.is_old and _is_next_known",
    ),
    Mutation(
        "next was certain without the record",
        "match.py",
        "view.is_old and view.is_next_old and _is_next_known",
        "view.is_next_old and _is_next_known",
    ),
    Mutation(
        "equal times of the other side are not prev",
        "match.py",
        "other_times[behind] <= ts",
        "other_times[behind] < ts",
    ),
    Mutation(
        "equal times of the other side are not next", "match.py", "other_times[first] < ts", "other_times[first] <= ts"
    ),
    Mutation(
        "the first of equal times is prev",
        "match.py",
        "            while behind < end and other_times",
        "            if behind < end and other_times",
    ),
    Mutation(
        "a neighbour of another key is prev",
        "match.py",
        "                behind > begin,\n",
        "                behind > 0,\n",
    ),
    Mutation(
        "a tie goes to next",
        "match.py",
        "gap(view.next_ts, view.ts) < gap(view.ts, view.prev_ts))\n    is_known",
        "gap(view.next_ts, view.ts) <= gap(view.ts, view.prev_ts))\n    is_known",
    ),
    Mutation(
        "nearest waits at an equal distance",
        "match.py",
        "not gap(frontier, view.ts) < gap(",
        "not gap(frontier, view.ts) <= gap(",
    ),
    Mutation("nearest prev is not certain at the end", "match.py", "or has_ended or", "or"),
    Mutation(
        "nearest prev is certain at an equal frontier",
        "match.py",
        "return frontier > view.ts and (is_next_known or",
        "return frontier >= view.ts and (is_next_known or",
    ),
    Mutation(
        "an evicted certain nearest neighbour is searched again",
        "match.py",
        "    if view.is_done:\n        return 0, 0\n",
        "",
    ),
    Mutation(
        "an evicted certain next neighbour is searched again",
        "match.py",
        "    if view.is_done:\n        return of_prev, 0\n",
        "",
    ),
    Mutation("certain pairs are emitted again", "match.py", "known & (NOW | BEFORE) == NOW", "known & NOW"),
    Mutation("relations of the right records yield no pairs", "match.py", " | _known(right_at, right_known, j, i)", ""),
    Mutation(
        "only one of several records with the same next is paired",
        "match.py",
        "        first -= 1\n",
        "        break\n",
    ),
    Mutation(
        "only one of several records with the same prev is paired", "match.py", "        last += 1\n", "        break\n"
    ),
    Mutation(
        "equal times on both sides are paired like unequal ones",
        "match.py",
        "        return min(first, following), max(prev, last), 1\n",
        "        return first, last, 1\n",
    ),
    Mutation(
        "equal times without records that refer to them are in no pair",
        "match.py",
        "    return following, prev, max(prev - following, 1)\n",
        "    return following, prev, len(left_at[0]) + 1\n",
    ),
    Mutation("the driver is ignored", "arguments.py", '(_NO_NEIGHBOUR if self.driver == "right" else spec)', "spec"),
    Mutation(
        "a time at the frontier is late for its key",
        "frontier.py",
        "ts[i] < of_key[key[i]] or",
        "ts[i] <= of_key[key[i]] or",
    ),
    Mutation(
        "a time at the frontier of the partition is late",
        "frontier.py",
        "or ts[i] < of_all[0]:",
        "or ts[i] <= of_all[0]:",
    ),
    Mutation("lateness is ignored", "frontier.py", "promise = less(ts[i], lateness_ns)", "promise = less(ts[i], 0)"),
    Mutation(
        "the lateness of the other side applies",
        "frontier.py",
        "self.lateness_ns[side], self",
        "self.lateness_ns[1 - side], self",
    ),
    Mutation(
        "a late record advances the frontier of the partition",
        "frontier.py",
        "            count += 1\n            continue\n",
        "            count += 1\n",
    ),
    Mutation(
        "a watermark applies to the record before it",
        "frontier.py",
        "watermark_seq[watermark] < seq[i]",
        "watermark_seq[watermark] < seq[i] + 2",
    ),
    Mutation(
        "watermarks apply at the end of the batch",
        "frontier.py",
        "watermark_seq[watermark] < seq[i]",
        "watermark_seq[watermark] < NEVER",
    ),
    Mutation(
        "watermarks after the last record are lost",
        "frontier.py",
        "range(watermark, len(watermark_key))",
        "range(watermark, watermark)",
    ),
    Mutation(
        "a record lowers the frontier",
        "frontier.py",
        "of_key[key[i]] = max(of_key[key[i]], promise)",
        "of_key[key[i]] = promise",
    ),
    Mutation(
        "a watermark lowers the frontier", "frontier.py", "of_key[key] = max(of_key[key], ts)", "of_key[key] = ts"
    ),
    Mutation("a record at the frontier is evicted", "release.py", "and ts[at] < alive", "and ts[at] <= alive"),
    Mutation(
        "prev of a future record is evicted",
        "release.py",
        "        if other_spec.prev:\n",
        "        if other_spec.prev and at < 0:\n",
    ),
    Mutation(
        "a record with an open next is evicted", "release.py", "is_open(relations.known[NEXT, at]) and", "False and"
    ),
    Mutation(
        "prev of a pending record is evicted",
        "release.py",
        "                at = min(at, prev)\n",
        "                at = min(at, end)\n",
    ),
    Mutation(
        "no record is marked as done",
        "release.py",
        "                own.rows[NOTES, at] |= DONE\n",
        "                own.rows[NOTES, at] |= 0\n",
    ),
    Mutation("no record is evicted", "release.py", "        kept[k] = at\n", "        kept[k] = own.begin[k]\n"),
    Mutation(
        "a record at the tolerance is evicted",
        "compiled.py",
        "until <= ts or gap(until, ts) <= tolerance",
        "until <= ts or gap(until, ts) < tolerance",
    ),
    Mutation(
        "a pair at the tolerance is left out",
        "compiled.py",
        "gap(max(one, other), min(one, other)) <= tolerance",
        "gap(max(one, other), min(one, other)) < tolerance",
    ),
    Mutation(
        "records without identity are duplicates",
        "backlog.py",
        "                if has_identities[side]:\n",
        "                if not has_identities[side]:\n",
    ),
    Mutation(
        "the later of two duplicates is kept",
        "record_store.py",
        "duplicates[first + order[n]] = True",
        "duplicates[first + order[n - 1]] = True",
    ),
    Mutation(
        "equal times have no ordinals", "record_store.py", "((rows[NOTES, i - 1] >> ORDINAL) + 1) << ORDINAL", "0"
    ),
    Mutation("held records are renumbered", "record_store.py", " and rows[SEQ, i] > side.since:", ":"),
    Mutation(
        "the later of two records with equal times comes first",
        "record_store.py",
        "table[TS, old] <= more[TS, new[at]]",
        "table[TS, old] < more[TS, new[at]]",
    ),
    Mutation(
        "a record at the next record's time counts as prev",
        "unmatched.py",
        "spec.prev and behind > arrives",
        "spec.prev and behind >= arrives",
    ),
    Mutation(
        "every earlier record counts as next of a future one",
        "unmatched.py",
        "until <= ts and before < ts",
        "until <= ts",
    ),
    Mutation(
        "pending records have no candidate",
        "unmatched.py",
        "                found[partner] = True\n",
        "                found[partner] = False\n",
    ),
    Mutation(
        "the tolerance is ignored for unmatched records",
        "unmatched.py",
        "                and is_within(tolerance, until, ts[at])\n",
        "",
    ),
    Mutation(
        "the backlog takes records that the other side may still reach",
        "backlog.py",
        "        reached = other_frontier[k]\n",
        "        reached = -FOREVER\n",
    ),
    Mutation(
        "the backlog takes records that the other side has reached",
        "backlog.py",
        "        if other.begin[k + 1] > other.begin[k]:\n",
        "        if other.begin[k + 1] < other.begin[k]:\n",
    ),
    Mutation(
        "the backlog takes records at the other side's last time",
        "backlog.py",
        "ts[first] <= reached",
        "ts[first] < reached",
    ),
    Mutation(
        "the backlog takes the last records",
        "backlog.py",
        "found[at] = ts[at] < ts[end - 1]",
        "found[at] = ts[at] <= ts[end - 1]",
    ),
    Mutation(
        "the backlog takes records that its own side may still precede",
        "backlog.py",
        "ts[end - 1] >= frontier[k]",
        "ts[end - 1] >= FOREVER",
    ),
    Mutation("the backlog takes the first record", "backlog.py", "range(first + 1, end)", "range(first, end)"),
    Mutation(
        "the backlog returns only the records that were reached",
        "backlog.py",
        "one_more = (behind < end) & (first",
        "one_more = (behind < start) & (first",
    ),
    Mutation(
        "the backlog keeps records at the reached time",
        "backlog.py",
        'until[n], side="right")',
        'until[n], side="left")',
    ),
    Mutation(
        "new records return nothing from the backlog, only frontiers do",
        "frontier.py",
        "np.maximum.at(found[side], keys.searchsorted(records.key), records.ts)",
        "pass",
    ),
    Mutation(
        "a bound ignores held records whose previous neighbour is not certain",
        "evaluate.py",
        "one = min(frontier, _first_open(own, relations, PREV, k))",
        "one = frontier",
    ),
    Mutation(
        "a bound ignores held records whose next neighbour is not certain",
        "evaluate.py",
        "if held != FOREVER:",
        "if held == NEVER:",
    ),
    Mutation(
        "a bound ignores the held previous neighbour",
        "evaluate.py",
        "return one, others[behind - 1]",
        "return one, one",
    ),
    Mutation(
        "a bound ignores the held next neighbour",
        "evaluate.py",
        "partner = min(partner, others[following])",
        "partner = partner",
    ),
    Mutation(
        "a bound takes less than half the tolerance",
        "evaluate.py",
        "half, odd = int(tolerance >> np.uint64(1)),",
        "half, odd = int(tolerance >> np.uint64(2)),",
    ),
    Mutation(
        "a bound does not round up half the tolerance",
        "evaluate.py",
        "half), odd))",
        "half), 0))",
    ),
)
