#!/usr/bin/env bash
# programs_test.sh CMAKE BUILD_DIR CONSUMER_DIR PYTHON: the examples and the recipes that users copy compile with the installed headers alone, and
# each program with a mistake gets its error. The training programs (examples/train_*) are installed as programs; their flags are those of the
# commands, which are no library.
set -euo pipefail
cmake=$1 build=$2 consumer=$3 python=$4
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/source" # with the examples alone, so that only installed headers of Paceline are found
examples=$work/source/examples
ln -s "$(cd "$here/../../examples" && pwd)" "$examples"
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
"$cmake" -S "$consumer" -B "$work/build" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log" 2>&1 ||
  { tail -n 30 "$work/log"; exit 1; }
"$python" "$here/compile_with_installed.py" "$work/build" programs \
  "$examples"/0*.cpp "$examples"/project/*.cpp "$examples"/recipes/*.cpp "$examples"/rpc/*.cpp
"$python" "$here/compile_with_installed.py" "$work/build" mistakes "$here"/mistakes/*.cpp
