#!/bin/sh
# Runs a suite that lies outside this repository on the program just built:
#   tools/suites.sh conformance|conformance-ci|hostile|prove|bench|kernels LATHE
# SHARED (default ../shared) has the scripts, SUITES (default build/suites) what they make, PYTHON (default python3) runs
# them. A Python with the packages is made in SUITES where PYTHON lacks them. ARGS are more options for the script; for bench,
# MODELS is a folder of models and PEERS names the other engines.
# prove runs each EVERYth (default 1st) test of the conformance suite and each model in MODELS (with inputs as its
# models.json describes them, if it has one) without each graph pass in turn, and with passes in other orders.
# conformance-ci also fails when fewer tests pass than did, and ends well, with a line that says so, where scripts or packages
# cannot be had.
set -eu
what=$1 lathe=$(realpath "$2")  # the scripts may run it from a folder of theirs
shared=${SHARED:-../shared} suites=${SUITES:-build/suites} python=${PYTHON:-python3} jobs=$(nproc)
conformance=$shared/conformance/conformance.py
ci_passes=2027  # tests that passed when this line was last changed; the other six draw random numbers

# Cannot go on: an error, but not for CI.
give_up() {
  echo "lathe: $what: $1" >&2
  [ "$what" = conformance-ci ] && exit 0
  exit 1
}
need_script() {
  [ -f "$1" ] || give_up "skipped: there is no $1 (SHARED=FOLDER tells where its folder lies)"
}
# Makes $python one that has the module.
need_python() {
  module=$1; shift
  "$python" -c "import $module" 2>/dev/null && return
  venv=$suites/venv
  if ! "$venv/bin/python" -c "import $module" 2>/dev/null; then
    mkdir -p "$suites"
    { "$python" -m venv "$venv" && timeout 150 "$venv/bin/pip" install -q --disable-pip-version-check "$@"; } >"$suites/pip.log" 2>&1 ||
      give_up "skipped: $python has no module $module, and pip cannot fetch it (see $suites/pip.log)"
  fi
  python=$venv/bin/python
}
# The exported tests; made once.
export_tests() {
  [ -f "$1/manifest.tsv" ] || "$python" "$conformance" export --out "$1" >"$suites/export.log" 2>&1 ||
    give_up "skipped: exporting the tests failed (see $suites/export.log)"
}
run_tests() {
  folder=$1; shift
  "$python" "$conformance" run --suite "$folder" --serve-cmd "$lathe test --stdin" --judge outputs --jobs "$jobs" "$@" ${ARGS:-}
}

mkdir -p "$suites"
case $what in
  conformance)
    need_script "$conformance"
    need_python onnx onnx==1.23.2
    export_tests "$suites/conformance"
    run_tests "$suites/conformance" --list ;;
  conformance-ci)
    need_script "$conformance"
    need_python onnx onnx==1.23.2
    export_tests "$suites/conformance"
    run_tests "$suites/conformance" --list --require "$ci_passes" ;;
  hostile)
    script=$shared/hostile/badmodels.py
    need_script "$script"
    need_python onnx onnx==1.23.2
    [ -f "$suites/hostile/manifest.tsv" ] || "$python" "$script" make --out "$suites/hostile"
    "$python" "$script" run --cases "$suites/hostile" --cmd "$lathe run {model} --data {dir} --save {out} --json" --list \
      --jobs "$jobs" ${ARGS:-} ;;
  prove)
    need_script "$conformance"
    need_python onnx onnx==1.23.2
    export_tests "$suites/conformance"
    tail -n +2 "$suites/conformance/manifest.tsv" | cut -f 3 | awk "NR % ${EVERY:-1} == 0" | sed "s|^|$suites/conformance/|" |
      xargs -n 50 -P "$jobs" "$lathe" prove -t 1 ${ARGS:-}
    models=${MODELS:-$suites/models}
    if [ -f "$models/models.json" ]; then
      "$python" "$(dirname "$0")/prove_models.py" --lathe "$lathe" --models "$models" ${ARGS:-}
    elif [ -d "$models" ]; then
      find "$models" -name '*.onnx' -print0 | xargs -0 -n 1 "$lathe" prove ${ARGS:-}
    fi ;;
  kernels)
    need_python onnxruntime -r "$shared/bench/requirements.txt"
    "$python" tools/compare_kernels.py "$lathe" --onednn "$(dirname "$lathe")/onednn/onednn_layers" \
      --tasks tools/kernel_tasks.txt ${ARGS:-} ;;
  bench)
    script=$shared/bench/peers.py
    need_script "$script"
    need_python onnxruntime -r "$shared/bench/requirements.txt"
    models=${MODELS:-$suites/models}
    [ -d "$models" ] || "$python" "$shared/bench/fetch_models.py" --out "$models"
    "$python" "$script" --models "$models" --threads 1,2 --peers "${PEERS:-ort,openvino}" --json "$suites/peers.json" \
      --md "$suites/peers.md" \
      --cmd "lathe=$lathe bench {model} --threads {threads} --input-dir {inputs} --output-dir {outputs} --duration {seconds}s --json {json}" ${ARGS:-}
    echo "lathe: the table is in $suites/peers.md" ;;
  *) echo "usage: tools/suites.sh conformance|conformance-ci|hostile|prove|bench|kernels LATHE" >&2; exit 2 ;;
esac
