#!/usr/bin/env bash
# book_test.sh BUILD: runs benchmarks/book with tiny settings. Every part must run, and the tables, the page and the numbers must agree.
set -uo pipefail
# shellcheck source=tests/examples/expectations.sh
source "$(dirname "$0")/expectations.sh"
build=$1
book=$(dirname "$0")/../../benchmarks/book

# Files in CIFAR-10's format, with 64 records each.
mkdir "$work/cifar"
/usr/bin/python3 - "$work/cifar" <<'PY'
import random, sys
noise = random.Random(1)
for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
    with open(f"{sys.argv[1]}/{name}.bin", "wb") as f:
        for _ in range(64):
            f.write(bytes([noise.randrange(10)]) + noise.randbytes(3072))
PY
tiny=("$book" --build "$build" --data-dir "$work/cifar" --quick)

expect every_part 0 'advice' "${tiny[@]}" --page "$work/book.html" --json "$work/book.json"
# shellcheck disable=SC2016
expect what_it_says 0 '^consistent$' /usr/bin/python3 - "$work/book.json" "$work/book.html" <<'PY'
import json, re, sys
book = json.load(open(sys.argv[1]))
page = open(sys.argv[2], encoding="utf-8").read()
parts = {section["part"]: section for section in book["sections"]}
assert list(parts) == ["threads", "layouts", "replicas", "hosts", "advice"], list(parts)
assert all(len(row) == len(section["columns"]) for section in parts.values() for row in section["rows"])
assert parts["threads"]["rows"][0][4] == 311 and parts["layouts"]["rows"][1][4:6] == ["2 x 8", 58]
# Both tables contain the same run. With the global batch kept, the number of replicas does not change the result.
assert parts["layouts"]["rows"][1][3] == parts["replicas"]["rows"][0][2], "two replicas"
kept = {row[0]: row for row in parts["replicas"]["rows"]}["global batch kept"]
assert kept[1] == kept[2] and kept[3] == "0.00", kept
assert all(row[1] for row in parts["advice"]["rows"]) and "command: paceline run" in parts["advice"]["notes"][0]
assert len(parts["hosts"]["rows"]) == 3 or "needs root" in parts["hosts"]["notes"][0]
assert all(run["steps"] > 0 for run in book["runs"])
assert page.count("<table>") == 5 and page.count("<svg") == 1 and page.count("<polyline") == 5
assert not re.search(r"https?://|src=|<link|<script", page), "it opens offline"
print("consistent")
PY
expect one_part 0 'Table 9.1' "${tiny[@]}" --part threads
expect no_data 1 'data_batch_1.bin' "${tiny[@]}" --data-dir "$work/nothing" --part threads
expect no_build 1 'build it' "$book" --build "$work" --data-dir "$work/cifar"
exit "$((failures > 0))"
