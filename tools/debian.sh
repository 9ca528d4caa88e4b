#!/usr/bin/env bash
# Installs those of the named Debian packages that are missing: as root, or by sudo.
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg-query --show --showformat '${db:Status-Status}' "$package" 2> /dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
as_root=(env DEBIAN_FRONTEND=noninteractive)
[ "$(id -u)" -eq 0 ] || as_root=(sudo "${as_root[@]}")
apt=("${as_root[@]}" apt-get -q -o DPkg::Lock::Timeout=300)
"${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends "${missing[@]}" || {
  echo "cannot install ${missing[*]}: that needs Debian 12 or later, root or sudo, and the network" >&2
  exit 1
}
