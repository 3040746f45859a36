#!/bin/sh
# Installs the Debian packages that are missing. Usage: tools/setup.sh build|test|demo|ci|peers ...   (all of them: build too)
# Quick and silent when all are there. Needs root or sudo only when something is missing.
set -eu

# package:what it is for. "command@package": a command counts, wherever it comes from.
build="g++@g++:compiler cmake@cmake:build python3@python3:build ninja@ninja-build:build pkg-config@pkg-config:build
  libxbyak-dev:assembler libasmjit-dev:assembler libonnx-dev:model-format libprotobuf-dev:model-format
  protoc@protobuf-compiler:model-format libsqlite3-dev:tuning-cache libhwloc-dev:CPU-topology
  libre2-dev:regular-expressions libjpeg-dev:images libpng-dev:images libtiff-dev:images libwebp-dev:images
  libopenjp2-7-dev:images libfmt-dev:text libcli11-dev:command-line nlohmann-json3-dev:reports libzip-dev:npz-files
  libpugixml-dev:test-reports"
test="libgtest-dev:tests libgmock-dev:tests"
demo="npm@npm:fetches-the-model tar@tar:unpacks-the-model sha256sum@coreutils:checks-the-model"
peers="libdnnl-dev:comparisons"
ci="clang-format@clang-format:formatting clang-tidy-22@clang-tidy-22:lint git@git:file-list"

wanted="$build"
for group in "$@"; do
  case $group in
    build) ;;
    test) wanted="$wanted $test" ;;
    demo) wanted="$wanted $demo" ;;
    peers) wanted="$wanted $peers" ;;
    ci) wanted="$wanted $test $ci" ;;
    *) echo "usage: tools/setup.sh build|test|demo|ci|peers ..." >&2; exit 2 ;;
  esac
done

installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null | sed -n 's/ installed$//p') || installed=""
missing="" reasons=""
for entry in $wanted; do
  name=${entry%%:*} why=$(echo "${entry#*:}" | tr - ' ')
  case $name in
    *@*) command -v "${name%%@*}" >/dev/null 2>&1 && continue; name=${name#*@} ;;
    *) printf '%s\n' "$installed" | grep -qx "$name" && continue ;;
  esac
  missing="$missing $name" reasons="$reasons $name ($why),"
done
[ -z "$missing" ] && exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "lathe: needs${reasons%,}; this system has no apt-get: please install them by its own means" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null 2>&1; then
    echo "lathe: needs${reasons%,}; please run as root: apt-get install$missing" >&2
    exit 1
  fi
  as_root=sudo
fi
echo "lathe: installing${reasons%,}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install_missing() {
  # shellcheck disable=SC2086  # one word per package
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing >"$log" 2>&1
}
# What this system may have under another name only: tools/tidy.py takes half as long with a clang-tidy that leaves
# system headers out.
install_older() {
  older=$(echo "$missing" | sed 's/clang-tidy-22/clang-tidy/')
  [ "$older" != "$missing" ] && missing=$older && install_missing
}
# A fresh image has no package lists.
install_missing || { $as_root apt-get update >>"$log" 2>&1 && install_missing; } || install_older || {
  tail -20 "$log" >&2
  echo "lathe: apt-get could not install$missing" >&2
  exit 1
}
