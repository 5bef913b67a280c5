#!/usr/bin/env bash
# subproject_test.sh CMAKE SOURCE_DIR WITH_LIBTORCH WHEEL: configures a project that contains Paceline's sources in both ways, and checks that its
# programs would be linked with everything they need. If nothing was built, `cmake --install` must build what it installs.
set -euo pipefail
cmake=$1 source=$2 with_libtorch=$3 wheel=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-G Ninja -DPACELINE_SOURCE="$source" -DPACELINE_WITH_LIBTORCH="$with_libtorch" -DPACELINE_LIBTORCH_WHEEL="$wheel")
for way in OFF ON; do
  "$cmake" -S "$source/tests/package/subproject" -B "$work/$way" "${flags[@]}" -DBY_FETCH_CONTENT="$way" >"$work/log" 2>&1 || {
    echo "FAILED: BY_FETCH_CONTENT=$way"
    tail -n 30 "$work/log"
    exit 1
  }
  commands=$("$cmake" --build "$work/$way" -- -t commands with_engine)
  grep -q -e '-o with_engine .*libpaceline_core.a.*libsodium' <<<"$commands"
  if [ "$with_libtorch" = ON ]; then
    commands=$("$cmake" --build "$work/$way" -- -t commands with_libtorch)
    grep -q -e '-o with_libtorch .*libpaceline_train.a.*libtorch_cpu' <<<"$commands"
    grep -q -e '-isystem [^ ]*torch.* -c [^ ]*with_libtorch.cpp' <<<"$commands"
  fi
done

# The project that newcomers copy.
if [ "$with_libtorch" = ON ]; then
  "$cmake" -S "$source/examples/project" -B "$work/copied" "${flags[@]}" -DPACELINE=sources -DPACELINE_SOURCES="$source" >"$work/log" 2>&1 ||
    { tail -n 30 "$work/log"; exit 1; }
  "$cmake" --build "$work/copied" -- -t commands train | grep -q -e '-o train .*libpaceline_train.a.*libtorch_cpu'
  if git -C "$source" rev-parse --verify -q HEAD >/dev/null; then  # not in a source archive
    "$cmake" -S "$source/examples/project" -B "$work/fetched" "${flags[@]}" -DPACELINE=fetched -DPACELINE_SOURCES="$source" >"$work/log" 2>&1 ||
      { tail -n 30 "$work/log"; exit 1; }
    "$cmake" --build "$work/fetched" -- -t commands train | grep -q -e '-o train .*libpaceline_train.a.*libtorch_cpu'
  fi
fi

# A build tool that only records its arguments.
"$cmake" -S "$source" -B "$work/part" -G Ninja -DPACELINE_WITH_LIBTORCH=OFF -DPACELINE_BUILD_TESTS=OFF -DPACELINE_BUILD_BENCHMARKS=OFF \
  >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
cat >"$work/tool" <<TOOL
#!/bin/sh
echo "\$@" >>"$work/asked"
[ "\$1" = --version ] && echo 1.11 && exit 0
exit 7
TOOL
chmod +x "$work/tool"
sed -i "s|^CMAKE_MAKE_PROGRAM:.*|CMAKE_MAKE_PROGRAM:FILEPATH=$work/tool|" "$work/part/CMakeCache.txt"
if "$cmake" --install "$work/part" --prefix "$work/prefix" >"$work/log" 2>&1; then
  echo "FAILED: nothing was built, and something was installed"
  exit 1
fi
grep -q 'Building the installed files that were not built yet' "$work/log" || { cat "$work/log"; exit 1; }
grep -q -e '^\(-[^ ]* \)*paceline_installable$' "$work/asked" || { cat "$work/asked"; exit 1; }
[ ! -e "$work/prefix/bin/paceline" ]
echo "both ways are configured; an installation builds what it lacks"
