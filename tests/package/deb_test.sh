#!/usr/bin/env bash
# deb_test.sh CMAKE BUILD_DIR CONSUMER_DIR DEBIAN_LIBTORCH [FOLDER]: makes the Debian packages of a build, in FOLDER if it is given, where they stay.
# Installs them into a root of their own, where they find every package of this machine and no other part of Paceline. Then uses them: the command,
# and a small program by CMake and by pkg-config. DEBIAN_LIBTORCH is ON if the build uses Debian's LibTorch; then a program with tensors is tested
# too.
set -euo pipefail
cmake=$1 build=$2 consumer=$3 debian_libtorch=$4
for tool in dpkg-deb dpkg-shlibdeps file fakeroot; do
  command -v $tool >/dev/null || { echo "$tool is missing: scripts/install_packages deb"; exit 1; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=${5:-$work/packages} compression=xz
[ -n "${5:-}" ] || compression=gzip  # faster: a build's debug information is large
log=$work/log

step() { "$@" >>"$log" 2>&1 || { echo "FAILED: $*"; tail -n 30 "$log"; exit 1; }; }
expect() {  # NAME PATTERN TEXT
  grep -qE -e "$2" <<<"$3" || { echo "FAILED $1: wanted /$2/ in:"; echo "$3"; exit 1; }
}
refuse() {  # NAME PATTERN TEXT
  ! grep -E -e "$2" <<<"$3" || { echo "FAILED $1: /$2/ matches the lines above"; exit 1; }
}

step "$(dirname "$cmake")/cpack" --config "$build/CPackConfig.cmake" -B "$packages" -D CPACK_DEBIAN_COMPRESSION_TYPE=$compression
rm -rf "$packages/_CPack_Packages"
runtime=$(echo "$packages"/paceline_*.deb) dev=$(echo "$packages"/libpaceline-dev_*.deb)

expect the_command_names_what_it_needs 'Depends: .*libc6.*libhwloc.*libsodium' "$(dpkg-deb -I "$runtime" | tr '\n' ' ')"
expect the_library_names_what_it_is_linked_with 'Depends: .*libhwloc-dev' "$(dpkg-deb -I "$dev")"
refuse neither_needs_python_or_libtorch 'pip|python|torch' "$(dpkg-deb -f "$runtime" Depends; dpkg-deb -f "$dev" Depends)"
refuse the_command_is_no_library '\.a$|/include/|train_image' "$(dpkg-deb -c "$runtime")"
refuse the_library_is_no_command '/bin/|/libexec/' "$(dpkg-deb -c "$dev")"

# dpkg uses this machine's list of installed packages, so a dependency that the machine does not meet is an error.
mkdir -p "$work/root" "$work/dpkg/info" "$work/dpkg/updates" "$work/dpkg/triggers"
awk -v RS= -v ORS='\n\n' '!/^Package: (paceline|libpaceline-dev)\n/' /var/lib/dpkg/status >"$work/dpkg/status"
touch "$work/dpkg/available"
as_root=()
[ "$(id -u)" -eq 0 ] || as_root=(fakeroot)
PATH=$PATH:/usr/sbin:/sbin  # dpkg looks for ldconfig
step "${as_root[@]}" dpkg --force-not-root --force-script-chrootless --log "$work/dpkg.log" --admindir "$work/dpkg" --instdir "$work/root" -i "$runtime" "$dev"

paceline=$work/root/usr/bin/paceline
expect version '^paceline [0-9]+\.[0-9]+' "$("$paceline" --version)"
expect doctor '^OK +build ' "$("$paceline" doctor || [ $? = 3 ])"
expect run '^rank 1 of 2$' "$("$paceline" run --nproc-per-node 2 --all-ranks sh -c 'echo rank $RANK of $WORLD_SIZE' | sed 's/^\[.\] //')"
step "$paceline" bench all_reduce --nproc-per-node 2 --sizes 4K --rounds 1 --calls 2 --check

step "$cmake" -S "$consumer" -B "$work/engine" -G Ninja -DCMAKE_PREFIX_PATH="$work/root/usr" -DCOMPONENTS=engine \
  -DCMAKE_DISABLE_FIND_PACKAGE_Torch=ON
expect find_package_takes_this_one "$work/root/usr" "$(grep Paceline_DIR "$work/engine/CMakeCache.txt")"
step "$cmake" --build "$work/engine"
expect find_package '^sum 42$' "$("$work/engine/with_engine")"
if [ "$debian_libtorch" = ON ]; then
  step "$cmake" -S "$consumer" -B "$work/everything" -G Ninja -DCMAKE_PREFIX_PATH="$work/root/usr"
  step "$cmake" --build "$work/everything" --target with_libtorch
  expect find_package_with_libtorch '^gradient 2$' "$("$work/everything/with_libtorch")"
fi
PKG_CONFIG_PATH=$(dirname "$(find "$work/root/usr" -name paceline-engine.pc)")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046
step c++ "$consumer/with_engine.cpp" -o "$work/by_pkg_config" $(pkg-config --cflags --libs paceline-engine)
expect pkg_config '^sum 42$' "$("$work/by_pkg_config")"
echo "$(basename "$runtime") and $(basename "$dev") install, and what they install works"
