#!/usr/bin/env bash
# links_test.sh ROOT: every relative link in the project's pages leads to a file or folder that exists.
set -euo pipefail
cd "$1"

missing=0
for page in *.md docs/*.md docs/*/*.md benchmarks/*.md; do
  [ -e "$page" ] || continue
  # [text](target "title") and [text](target#part), outside of code blocks; links with other schemes are not checked.
  targets=$(awk '/^ *```/ {code = !code; next} !code' "$page" | grep -oE '\]\([^)[:space:]]+' | sed -E 's/^\]\(//; s/#.*//' || true)
  for target in $targets; do
    case "$target" in *:*) continue ;; esac
    if [ ! -e "$(dirname "$page")/$target" ]; then
      echo "links: $page links to $target, which does not exist" >&2
      missing=$((missing + 1))
    fi
  done
done
[ "$missing" -eq 0 ] && echo "links: every relative link leads somewhere"
