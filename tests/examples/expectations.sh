# shellcheck shell=bash disable=SC2034
# For scripts that start an example under the launcher: source this file. It provides the folder $work, which is removed at the end, expect() and
# $failures.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work/tmp  # for the logs of jobs that are meant to fail
mkdir "$TMPDIR"
failures=0

# expect NAME WANTED_EXIT PATTERN COMMAND...: checks the command's exit code, and that its output matches the regular expression.
expect() {
  local name=$1 wanted=$2 pattern=$3
  shift 3
  local output code=0
  output=$(timeout 200 "$@" 2>&1) || code=$?
  if [ "$code" != "$wanted" ] || ! grep -qE -e "$pattern" <<<"$output"; then
    echo "FAILED $name: exit $code (wanted $wanted), wanted /$pattern/ in:"
    echo "$output" | tail -n 25
    failures=$((failures + 1))
  else
    echo "ok $name"
  fi
}
