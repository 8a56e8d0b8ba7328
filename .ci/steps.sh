# shellcheck shell=bash
# The step runner of ./test: runs every step, times it, and closes with a table.
#
# A step is a function `step_NAME` of the script that sources this file, which names itself in
# $self and runs one step when called with `--step NAME`. Each step gets a bash of its own with
# errexit on, so that any command of it that fails, fails the step: called from a condition in this
# shell, errexit would be off. What a step leaves in its log is read by `count_NAME`, when there is
# such a function, for the number of tests that ran.

set -euo pipefail

names=() results=() seconds=() tests=()
failed=0

# run_steps LOGS STOPPER STEP...: runs all steps; only a failure of STOPPER ends the run early,
# because nothing after it can work.
run_steps() {
    local logs=$1 stopper=$2
    shift 2
    mkdir -p "$logs"
    local name stopped=
    for name in "$@"; do
        if [[ -n $stopped ]]; then
            record "$name" 'not run' - -
            continue
        fi
        run_one "$logs" "$name"
        if [[ ${results[-1]} == FAILED && $name == "$stopper" ]]; then
            stopped=1
        fi
    done
    summary "$logs"
}

run_one() {
    local logs=$1 name=$2 started=$SECONDS status=0 result=ok count=-
    printf '\n=== %s\n' "$name"
    STEP=$name "$BASH" "$self" --step "$name" </dev/null 2>&1 | tee "$logs/$name.log" || status=$?
    if [[ $status -ne 0 ]]; then
        result=FAILED
        failed=1
    fi
    if declare -F "count_$name" >/dev/null; then
        count=$("count_$name" "$logs/$name.log")
    fi
    printf -- '--- %s: %s, %s s\n' "$name" "$result" "$((SECONDS - started))"
    record "$name" "$result" "$((SECONDS - started))" "$count"
}

record() {
    names+=("$1") results+=("$2") seconds+=("$3") tests+=("$4")
}

summary() {
    local i total=0
    printf '\n%-16s %-8s %8s %8s\n' step result seconds tests
    for i in "${!names[@]}"; do
        printf '%-16s %-8s %8s %8s\n' "${names[i]}" "${results[i]}" "${seconds[i]}" "${tests[i]}"
        [[ ${tests[i]} == - ]] || total=$((total + tests[i]))
    done
    printf '%s tests ran in %s s; the output of each step is in %s\n' "$total" "$SECONDS" "$1"
    if [[ $failed -ne 0 ]]; then
        printf 'FAILED\n'
        return 1
    fi
    printf 'All steps passed.\n'
}

# sum_of PATTERN LOG: adds up the first number of every match of an extended regular expression.
sum_of() {
    { grep -oE "$1" "$2" || true; } | { grep -oE '[0-9]+' || true; } | awk '{ sum += $1 } END { print sum + 0 }'
}
