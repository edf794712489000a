# Sourced by the scripts for a GPU machine without network: unpacks carry/site.tar.xz (studies/gpu/build_carry.sh) into a
# scratch folder, $work, and puts it and this checkout first on Python's path.
work=$(mktemp -d)
mkdir -p "$work/site"
python3 -m tarfile -e carry/site.tar.xz "$work/site" || exit 1
export PYTHONPATH="$work/site:$PWD" ARR_COC_FONTS="$PWD/carry/fonts" ARR_COC_WIDE="$PWD/carry/wide"
export PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
# Batches come from the workers through shared memory, several gigabytes of them.
if [ "$(df --output=avail -k /dev/shm | tail -1)" -lt 8000000 ]; then
    mount -o remount,size=48G /dev/shm || echo "little shared memory: images may run short"
fi
