#!/usr/bin/env bash
# installed_tree_test.sh CMAKE BUILD_DIR CONSUMER_DIR WITH_LIBTORCH WHEEL PYTHON: installs a build into a folder, and uses the installed files.
set -euo pipefail
cmake=$1 build=$2 consumer=$3 with_libtorch=$4 wheel=${5:-} python=${6:-python3}
work=$build/tests/package/installed_tree  # a fixed place, so that ccache knows the programs again
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
export CCACHE_NOHASHDIR=1 CCACHE_BASEDIR=$work CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
for inner in launcher/job/agent.h engine/transport/mesh.h engine/collectives/backends/paceline/shared_executor.h; do
  [ ! -e "$work/prefix/include/paceline/$inner" ] || { echo "FAILED: $inner is no public header, and is installed"; exit 1; }
done
# Each command has a manual page with its options.
for page in paceline paceline-bench-rpc $("$work/prefix/bin/paceline" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/paceline-\1/p'); do
  zcat "$work/prefix/share/man/man1/$page.1.gz" >"$work/$page.1" || { echo "FAILED: no manual page $page"; exit 1; }
done
grep -q 'nproc.-per.-node' "$work/paceline-run.1" || { echo "FAILED: the manual page of paceline run has no options"; exit 1; }
# All names that the pages mention are in the one header.
if [ "$with_libtorch" = ON ]; then
  "$python" "$(dirname "$0")/page_names.py" "$(dirname "$0")/../.." >"$work/page_names.cpp"
fi
"$cmake" -S "$consumer" -B "$work/build" -DPAGE_NAMES="$work/page_names.cpp" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
"$cmake" --build "$work/build" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
[ "$("$work/build/with_engine")" = "sum 42" ]
if [ "$with_libtorch" = ON ]; then
  [ "$("$work/build/with_libtorch")" = "gradient 2" ]
  # A user of data parallelism needs 40 names; mistakes get an error of a few lines that says what to write. package.programs has all of them.
  here=$(dirname "$0")
  names=$("$work/build/data_parallel_names") || true
  [ "$names" = "8 steps, 9 weights, told" ] || { echo "FAILED: data_parallel_names: $names"; exit 1; }
  "$python" "$here/count_names.py" "$here/../.." "$consumer/data_parallel_names.cpp" 40
  "$python" "$here/compile_with_installed.py" "$work/build" mistakes "$here"/mistakes/{vector,forgotten_group}.cpp
  # Every block of C++ of the pages.
  "$python" "$here/page_blocks.py" "$here/../.." >"$work/page_blocks.cpp"
  "$python" "$here/compile_with_installed.py" "$work/build" programs "$work/page_blocks.cpp"
  # Two programs to copy; package.programs has all of them.
  examples=$here/../../examples
  "$python" "$here/compile_with_installed.py" "$work/build" programs "$examples/05_libtorch_parts.cpp" "$examples/recipes/checkpoint_loop.cpp"
  "$cmake" -S "$(dirname "$0")/../../examples/project" -B "$work/copied" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log" 2>&1 &&
    "$cmake" --build "$work/copied" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
  "$work/prefix/bin/paceline" run --nproc-per-node 2 "$work/copied/train" | grep -qx 'y = [23]\.[0-9]* x + [01]\.[0-9]*' ||
    { echo "FAILED: examples/project"; exit 1; }
fi
"$cmake" -S "$consumer" -B "$work/engine" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DCOMPONENTS=engine \
  -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
"$cmake" --build "$work/engine" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
[ "$("$work/engine/with_engine")" = "sum 42" ]
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name paceline-engine.pc)")
# shellcheck disable=SC2046
c++ -Wall -Wextra -Wshadow -Werror "$consumer/with_engine.cpp" -o "$work/by_pkg_config" $(pkg-config --cflags --libs paceline-engine)
[ "$("$work/by_pkg_config")" = "sum 42" ]
# The recipe for programs without LibTorch.
# shellcheck disable=SC2046
c++ -std=c++20 -Wall -Wextra -Wshadow -Werror -isystem "$work/prefix/include" "$(dirname "$0")/../../examples/recipes/plain_calls.cpp" \
  -o "$work/plain_calls" $(pkg-config --cflags --libs paceline-engine)
"$work/prefix/bin/paceline" run --nproc-per-node 3 "$work/plain_calls" | grep -qx 'pi 3.1416, largest 2, sum of squares 5, from rank 2, done' ||
  { echo "FAILED: plain_calls"; exit 1; }
# C++17 is refused with a few lines, and the first one gives the reason.
if c++ -std=c++17 -fsyntax-only -I"$work/prefix/include" "$consumer/with_engine.cpp" >"$work/old" 2>&1; then
  echo "FAILED: compiled as C++17"
  exit 1
fi
grep -m1 'error' "$work/old" | grep -q 'Paceline needs C++20: compile with -std=c++20' || { head "$work/old"; exit 1; }
[ "$(wc -l <"$work/old")" -le 15 ] || { echo "FAILED: C++17 gives $(wc -l <"$work/old") lines"; exit 1; }
# refused NAME PATTERN OPTIONS...: checks that the consumer cannot be configured, and that CMake's message, with its lines joined, matches.
refused() {
  local name=$1 pattern=$2 output
  shift 2
  if output=$("$cmake" -S "$consumer" -B "$work/refused" --fresh -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" "$@" 2>&1) ||
      ! grep -qE -e "$pattern" <<<"$(tr -s ' \n' ' ' <<<"$output")"; then
    echo "FAILED $name: wanted an error that matches /$pattern/, not:"
    tail -n 30 <<<"$output"
    exit 1
  fi
}
refused a_component_that_does_not_exist "there is no component 'x'; the components are 'engine' .* and 'paceline'" -DCOMPONENTS="engine;x"
if [ "$with_libtorch" = ON ] && [ -z "$wheel" ]; then
  refused libtorch_that_is_missing "LibTorch was not found: install .*libtorch-dev.* asks for COMPONENTS engine" \
    -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON
elif [ "$with_libtorch" != ON ]; then
  refused a_component_that_was_not_built "the component 'paceline' needs LibTorch, and this Paceline was built without" -DCOMPONENTS=paceline
fi
"$work/prefix/bin/paceline" --version
"$work/prefix/bin/paceline" bench all_reduce --np 2 --sizes 4K --rounds 1 --calls 2 --check >>"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
echo "the installed package builds and runs a program by CMake and by pkg-config"
