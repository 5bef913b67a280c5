#!/usr/bin/env bash
# installed_tree_test.sh CMAKE BUILD_DIR CONSUMER_DIR WITH_LIBTORCH WHEEL
set -euo pipefail
cmake=$1 build=$2 consumer=$3 with_libtorch=$4 wheel=${5:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
"$cmake" -S "$consumer" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
"$cmake" --build "$work/build" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
[ "$("$work/build/with_engine")" = "sum 42" ]
if [ "$with_libtorch" = ON ]; then
  [ "$("$work/build/with_libtorch")" = "gradient 2" ]
fi
"$cmake" -S "$consumer" -B "$work/engine" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" -DENGINE_ALONE=ON \
  -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
"$cmake" --build "$work/engine" >>"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
[ "$("$work/engine/with_engine")" = "sum 42" ]
export PKG_CONFIG_PATH
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name paceline-engine.pc)")
# shellcheck disable=SC2046
c++ -Wall -Wextra -Wshadow -Werror "$consumer/with_engine.cpp" -o "$work/by_pkg_config" $(pkg-config --cflags --libs paceline-engine)
[ "$("$work/by_pkg_config")" = "sum 42" ]
"$work/prefix/bin/paceline" --version
"$work/prefix/bin/paceline" bench all_reduce --np 2 --sizes 4K --rounds 1 --calls 2 --check >>"$work/log" 2>&1 || { tail "$work/log"; exit 1; }
echo "the installed package builds and runs a program by CMake and by pkg-config"
