#!/bin/sh
# Lints our sources: tools/tidy.sh BUILD_FOLDER [JOBS] [FILES...]. A file that was clean is not looked at again until its
# preprocessed text, the checks or clang-tidy change; stamps are in BUILD_FOLDER/tidy.
set -eu
build=$1 jobs=${2:-$(nproc)}
[ $# -ge 2 ] && shift 2 || shift 1
[ -f "$build/compile_commands.json" ] || cmake -B "$build" -G Ninja --log-level=WARNING
mkdir -p "$build/tidy"
# Without the precompiled headers, which are another compiler's.
sed 's/ -Winvalid-pch -include [^ ]*cmake_pch.hxx//' "$build/compile_commands.json" >"$build/tidy/compile_commands.json"
[ $# -gt 0 ] || set -- $(git ls-files '*.cpp' ':!tests/package/*' ':!tools/onednn/*')  # which need other packages
tidy=$(command -v clang-tidy-22 || command -v clang-tidy)
version=$($tidy --version | sha256sum)
export build tidy version
# Standard headers of g++ use what they deprecate.
printf '%s\n' "$@" | xargs -P "$jobs" -n 1 sh -c '
  key=$( { echo "$version"; cat .clang-tidy; g++ -std=c++20 -E -P -I. -Iinclude "$0" 2>/dev/null; } | sha256sum | cut -c1-32)
  stamp="$build/tidy/$key"
  [ -e "$stamp" ] && exit 0
  "$tidy" --quiet -p "$build/tidy" --warnings-as-errors="*" --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-deprecated-declarations "$0" 2>/dev/null && : >"$stamp" || { echo "tidy: $0" >&2; exit 1; }
'
