# Sourced by the scripts for a GPU machine without network: unpacks the wheels of carry/ (studies/gpu/build_carry.sh) into
# a scratch folder, $work, and puts them and this checkout first on Python's path.
work=$(mktemp -d)
for wheel in carry/*.whl; do
    python3 -m zipfile -e "$wheel" "$work/site" || exit 1
done
export PYTHONPATH="$work/site:$PWD" ARR_COC_FONTS="$PWD/carry/fonts" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1
export TOKENIZERS_PARALLELISM=false PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
# Batches come from the workers through shared memory, several gigabytes of them.
if [ "$(df --output=avail -k /dev/shm | tail -1)" -lt 8000000 ]; then
    mount -o remount,size=48G /dev/shm || echo "little shared memory: images may run short"
fi
