// LAMB on a CUDA device, two launches for up to MOST_TENSORS tensors; compiled by NVRTC when it is first used (see
// lamb_kernel.py).
//
// Every block works on a piece of one tensor. lamb_move updates both moments, and stores the move and the sums of
// squares of its piece. lamb_step adds up the sums of its tensor, in the same order in every block, and takes the step.

struct Tensors {
    float *weight[MOST_TENSORS];
    const float *gradient[MOST_TENSORS];  // null: zero
    float *mean[MOST_TENSORS];
    float *square[MOST_TENSORS];
    float *move[MOST_TENSORS];
};

struct Pieces {
    const int4 *piece;       // tensor, first weight, end, unused
    const int2 *tensor;      // first piece, end
    float2 *sums;            // of each piece: squares of weights, squares of moves
    const float *settings;   // decay, both betas, eps, greatest norm
    const float *rate;
};

__device__ float2 sum_over_block(float2 own) {
    __shared__ float2 parts[THREADS / 32];
    for (int offset = 16; offset; offset /= 2) {
        own.x += __shfl_xor_sync(~0u, own.x, offset);
        own.y += __shfl_xor_sync(~0u, own.y, offset);
    }
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = own;
    __syncthreads();
    float2 total = {0.0f, 0.0f};
    for (int warp = 0; warp < THREADS / 32; ++warp) {
        total.x += parts[warp].x;
        total.y += parts[warp].y;
    }
    return total;
}

extern "C" __global__ void __launch_bounds__(THREADS) lamb_move(Tensors tensors, Pieces pieces) {
    const int4 piece = pieces.piece[blockIdx.x];
    const float decay = pieces.settings[0], beta1 = pieces.settings[1], beta2 = pieces.settings[2];
    const float eps = pieces.settings[3];
    const float *weight = tensors.weight[piece.x], *gradient = tensors.gradient[piece.x];
    float *mean = tensors.mean[piece.x], *square = tensors.square[piece.x], *move = tensors.move[piece.x];
    float2 own = {0.0f, 0.0f};
    for (int i = piece.y + threadIdx.x; i < piece.z; i += THREADS) {
        const float w = weight[i], g = gradient ? gradient[i] : 0.0f;
        const float m = beta1 * mean[i] + (1.0f - beta1) * g;
        const float v = beta2 * square[i] + (1.0f - beta2) * g * g;
        const float moved = m / (sqrtf(v) + eps) + decay * w;
        mean[i] = m;
        square[i] = v;
        move[i] = moved;
        own.x += w * w;
        own.y += moved * moved;
    }
    const float2 total = sum_over_block(own);
    if (threadIdx.x == 0) pieces.sums[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(THREADS) lamb_step(Tensors tensors, Pieces pieces) {
    const int4 piece = pieces.piece[blockIdx.x];
    const int2 range = pieces.tensor[piece.x];
    float2 own = {0.0f, 0.0f};
    for (int i = range.x + threadIdx.x; i < range.y; i += THREADS) {
        own.x += pieces.sums[i].x;
        own.y += pieces.sums[i].y;
    }
    const float2 total = sum_over_block(own);
    const float weights = fminf(sqrtf(total.x), pieces.settings[4]), moves = sqrtf(total.y);
    const float ratio = weights > 0.0f && moves > 0.0f ? weights / moves : 1.0f;
    const float step = *pieces.rate * ratio;
    float *weight = tensors.weight[piece.x];
    const float *move = tensors.move[piece.x];
    for (int i = piece.y + threadIdx.x; i < piece.z; i += THREADS) weight[i] -= step * move[i];
}
