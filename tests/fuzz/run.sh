#!/usr/bin/env bash
# Builds one fuzz target with clang and runs it:  tests/fuzz/run.sh fuzz_import SECONDS [CORPUS_FOLDER]
# A folder that is empty starts with what tests/fuzz/corpus holds. With `keep` for SECONDS, the least files of the folder (build/fuzz/corpus/TARGET by
# default) that reach what all of them reach are put there instead. Exit code 77: no clang or no libFuzzer here.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=$1 seconds=$2 out=build/fuzz
corpus=${3:-$out/corpus/$target} kept=tests/fuzz/corpus/$target.tar.xz
command -v clang >/dev/null || { echo "no clang: run tools/setup"; exit 77; }
mkdir -p "$out" "$corpus"
flags=(-g -O1 -w -D_GNU_SOURCE -std=gnu17 -ffp-contract=off -I. -isystem .deps/schema)
sanitize=(-fsanitize=fuzzer-no-link,address,undefined)
objects=() compilers=()
newest_header=$(ls -t ./*/*.h ./*/*.def | head -1)      # a structure that changed changes every object
compile() {   # compiler, object, source, flags
  local cc=$1 object=$out/$2 source=$3
  shift 3
  objects+=("$object")
  if [ "$object" -nt "$source" ] && [ ! "$newest_header" -nt "$object" ]; then return; fi
  if [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; then wait -n; fi
  "$cc" "${flags[@]}" "$@" -c "$source" -o "$object" &
  compilers+=($!)
}
for source in ir/*.c frontend/*.c kernels/*.c passes/*.c runtime/{safetensors,step_program,data_files,data_parts,data_pack,token_file}.c .deps/schema/onnx.pb-c.c; do
  name=$(echo "$source" | tr / _).o
  case $source in
    kernels/loops.c) ;;
    ir/weights.c) compile gcc "$name" "$source" ;;      # clang before 15 has no _Float16 here
    *) compile clang "$name" "$source" "${sanitize[@]}" ;;
  esac
done
compile gcc loops_scalar.o kernels/loops.c -DLOOPS_ISA=scalar
compile gcc loops_avx2.o kernels/loops.c -DLOOPS_ISA=avx2 -mavx2 -mfma
compile gcc loops_avx512.o kernels/loops.c -DLOOPS_ISA=avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma
for compiler in "${compilers[@]}"; do wait "$compiler" || [ $? = 127 ]; done     # ends with the status of one that failed; 127: wait -n has it already
clang "${flags[@]}" -fsanitize=fuzzer,address,undefined "tests/fuzz/$target.c" "${objects[@]}" -o "$out/$target" \
  -lprotobuf-c -lcrypto -lxxhash -ljansson -ldnnl -lm -lpthread -lgomp || { echo "no libFuzzer: run tools/setup"; exit 77; }
if [ "$seconds" = keep ]; then
  least=$(mktemp -d)
  "$out/$target" -set_cover_merge=1 -max_len=20000 -rss_limit_mb=2048 "$least" "$corpus"
  tar --create --xz --file "$kept" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --directory "$least" .
  rm -r "$least"
  exit
fi
if [ -z "$(ls -A "$corpus")" ]; then python3 -m tarfile -e "$kept" "$corpus"; fi      # needs no xz program
"$out/$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=10 -max_len=65536 -artifact_prefix="$out/" "$corpus"
