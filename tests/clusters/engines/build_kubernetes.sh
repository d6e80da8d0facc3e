#!/usr/bin/env bash
# Build the programs of Kubernetes that control_plane.py starts, from Debian's source, without installing anything:
#   bash tests/clusters/engines/build_kubernetes.sh FOLDER; export MONARCH_NB_KUBERNETES=FOLDER/bin
# Ten minutes on two cores and 4 GB in FOLDER, all of which but bin/ may be removed afterwards.
set -euo pipefail
mkdir -p "${1:?which folder}"
top=$(cd "$1" && pwd)
mkdir -p "$top"/{bin,debs,home,lists/partial,root,src,tmp,gopath/src/k8s.io}

sed 's/^Types: deb$/Types: deb deb-src/' /etc/apt/sources.list.d/debian.sources >"$top/all.sources"
apt=(apt-get -q -o "Dir::Etc::sourcelist=$top/all.sources" -o Dir::Etc::sourceparts=/dev/null
  -o "Dir::State::lists=$top/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
"${apt[@]}" update
(cd "$top/src" && "${apt[@]}" source --download-only kubernetes)
(cd "$top/debs" && "${apt[@]}" download golang-1.19-go golang-1.19-src etcd-server)
for each in "$top"/debs/*.deb; do dpkg -x "$each" "$top/root"; done
cp "$top/root/usr/bin/etcd" "$top/bin/"

export GOROOT="$top/root/usr/lib/go-1.19" GOPATH="$top/gopath" GOCACHE="$top/gocache" GOTMPDIR="$top/tmp"
export PATH="$GOROOT/bin:$PATH" HOME="$top/home" GOPROXY=off CGO_ENABLED=0 GO111MODULE=off
for each in "$GOROOT"/*; do # Debian's links lead to where a package would be installed
  if [[ -L $each ]]; then ln -sfn "$top/root/usr/share/go-1.19/${each##*/}" "$each"; fi
done

home="$GOPATH/src/k8s.io/kubernetes"
[[ -d $home ]] || dpkg-source --no-check -x "$top"/src/*.dsc "$home"
cd "$home"
# the one file of generated code that the source has not
go build -o "$top/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
tagged=$(grep -rl --include='*.go' '^// *+k8s:openapi-gen=true' pkg plugin staging/src/k8s.io |
  grep -v '/testdata/\|_test.go\|sample-' | xargs -n1 dirname | sort -u |
  sed 's#^staging/src/#vendor/#; s#^#k8s.io/kubernetes/#' | paste -sd,)
"$top/openapi-gen" --logtostderr -i "$tagged" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
  -h hack/boilerplate/boilerplate.generatego.txt -r "$top/violations"

version=k8s.io/kubernetes/vendor/k8s.io/component-base/version
about="-s -w -X $version.gitVersion=v1.20.2 -X $version.gitMajor=1 -X $version.gitMinor=20"
for each in kube-apiserver kube-controller-manager kube-scheduler; do
  nice -n 10 go build -ldflags "$about" -o "$top/bin/$each" "./cmd/$each"
done
ls -l "$top/bin"
