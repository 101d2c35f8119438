#!/bin/sh
# Certificates for kube-scheduler's extender, good for a year, into the folder $1 (made anew):
#   ca.crt              whom both sides trust; ca.key signs more, keep it apart
#   tls.crt, tls.key    Weft's own, for weft-extender.weft-system.svc and the further names, such as
#                       DNS:weft.example or IP:10.0.0.1, that follow $1
#   client.crt, .key    kube-scheduler's
set -eu
[ $# -ge 1 ] || { echo "usage: $0 FOLDER [DNS:NAME|IP:ADDRESS ...]" >&2; exit 2; }
umask 077
mkdir "$1"
cd "$1"
shift
names=DNS:weft-extender.weft-system.svc,DNS:weft-extender.weft-system
for name in "$@"; do names=$names,$name; done

key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }

signed() {  # NAME COMMON-NAME EXTENSIONS…
    file=$1 subject=$2
    shift 2
    key "$file.key"
    printf '%s\n' keyUsage=digitalSignature "$@" > "$file.ext"
    openssl req -new -key "$file.key" -subj "/CN=$subject" |
        openssl x509 -req -out "$file.crt" -days 366 -CA ca.crt -CAkey ca.key -CAcreateserial \
            -extfile "$file.ext"
    rm "$file.ext"
}

key ca.key
openssl req -x509 -new -key ca.key -out ca.crt -days 3660 -subj /CN=weft-extender-ca
signed tls weft-extender extendedKeyUsage=serverAuth "subjectAltName=$names"
signed client kube-scheduler extendedKeyUsage=clientAuth
rm -f ca.srl
ls
