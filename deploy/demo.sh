#!/bin/sh
# Give each of three parties a folder with its table, keys, certificate and approved job: PARTIES/notary, city, rentals.
# Run by the service "setup" of compose.yaml. Folders that exist are left alone, so that a second start resumes.
set -eu
example=${EXAMPLE:-/example} parties=${PARTIES:-/parties} work=$(mktemp -d)
if [ -e "$parties/city/.ready" ]; then
    echo "The parties exist already."
    exit 0
fi
cp "$example"/*.toml "$example/run.py" "$work"
cd "$work"
sed -i 's/127.0.0.1:7411/notary:7411/; s/127.0.0.1:7412/city:7412/' job.toml
PYTHONDONTWRITEBYTECODE=1 python -c 'import run; run.write_tables(run.Path())'
fedsim certs key --out linkage.key
fedsim certs --coordinator notary --primary city --secondary rentals
mv flats.csv city.csv
sed -i 's/flats.csv/city.csv/' city.toml
for party in notary rentals city; do
    mkdir -p "$parties/$party/certs"
    cp certs/ca.pem certs/*-$party.* "$parties/$party/certs"
    cp $party.toml "$parties/$party"
    if [ $party != notary ]; then cp linkage.key $party.csv "$parties/$party"; fi
    cp job.toml "$parties/$party"
    fedsim approve "$parties/$party/job.toml" "$parties/$party/$party.toml" --yes
    if [ "$(id -u)" = 0 ]; then chown -R 10001:10001 "$parties/$party"; fi
done
touch "$parties/city/.ready" # last: a start that was interrupted begins again
rm -r "$work"
