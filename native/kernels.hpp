// What the C interface and the instruction-set paths share: plain argument structs and a table of functions.
//
// Keep this header and everything that path.cpp includes free of inline functions from the standard library: the
// linker keeps one copy of an inline function, and it might keep the one compiled for AVX-512.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace paceline {

enum KvType : int32_t { KV_FLOAT32 = 0, KV_BFLOAT16 = 1, KV_FLOAT16 = 2 };

struct NormArgs {
    const float *x;
    float *residual;  // null: plain norm; else residual += x first and the norm is residual's
    const float *weight;
    float *out;
    int64_t rows, width;
    int64_t x_stride, residual_stride, out_stride;  // elements from row to row
    float eps;
};

struct SiluArgs {
    const float *gate_up;  // gate in the first half of a row, up in the second
    float *out;
    int64_t rows, width;  // width of one half
    int64_t in_stride, out_stride;
};

struct RotateArgs {
    float *q, *k;
    const float *v;
    const float *cos, *sin;
    const int32_t *positions;
    const int64_t *slots;
    void *k_cache;  // [blocks, kv_heads, head_dim, block_size]: transposed, so that scores have keys for lanes
    void *v_cache;  // [blocks, kv_heads, block_size, head_dim]
    int64_t rows, heads, kv_heads, head_dim, half;  // half: cos.shape[1], half of the rotated dimensions
    int64_t q_row, q_head, k_row, k_head, v_row, v_head;  // strides in elements
    int64_t block_size;
    int64_t table_rows, num_slots;  // bounds of positions and slots
    int32_t kv_type;
};

struct AttentionArgs {
    const float *q;
    const void *k_cache;  // [blocks, kv_heads, head_dim, block_size]: transposed, so that scores have keys for lanes
    const void *v_cache;  // [blocks, kv_heads, block_size, head_dim]
    const int32_t *block_tables;
    const int32_t *query_starts;
    const int32_t *context_lens;
    float *out;
    int64_t sequences, heads, kv_heads, head_dim, block_size, table_stride;
    int64_t q_row, q_head, out_row, out_head;  // strides in elements
    int64_t rows, num_blocks, table_width;     // bounds of query starts, block numbers and blocks per sequence
    int32_t kv_type, window;  // window 0: unlimited
    float scale, soft_cap;    // soft_cap 0: none
};

// How a matrix of weights is stored; packed_formats.hpp says what each means, int8.hpp says it of I8, whose products round
// the activations, too. The numbers are those of kernels/packed.py.
enum Format : int32_t {
    FORMAT_F32, FORMAT_F16, FORMAT_BF16, FORMAT_Q4_0, FORMAT_Q4_1, FORMAT_Q5_0, FORMAT_Q5_1, FORMAT_Q8_0,
    FORMAT_Q4_K, FORMAT_Q5_K, FORMAT_Q6_K, FORMAT_I8, FORMATS
};

struct PackedArgs {
    const float *x;      // [rows, columns]
    const void *weight;  // packed [outputs, columns]
    const float *bias;   // [outputs], or null
    float *out;          // [rows, outputs]
    int64_t rows, columns, outputs;
    int64_t x_stride, out_stride;  // elements from row to row
    int32_t format;
};

struct PackArgs {
    const void *raw;  // [rows, columns] in the format's blocks as GGUF files have them, or plain floats; for I8, too
    void *out;        // the whole packed matrix, zeros before the first call
    int64_t rows, columns;
    int64_t first;    // row of the matrix that raw begins with: a matrix may be packed in pieces
    int32_t format;
};

struct UnpackArgs {
    const void *weight;   // packed [outputs, columns]
    const int64_t *rows;  // [count]: which rows of it
    float *out;           // [count, columns]
    int64_t count, columns, outputs;
    int32_t format;
};

// A product with up to three matrices one below the other.
struct LinearParts {
    const void *weight[3];
    int64_t outputs[3];
    int32_t format[3];
    int32_t parts;
    const float *bias;  // of all outputs, or null
};

struct LayerWeights {
    const float *input_norm, *mlp_norm;
    LinearParts qkv, output, gate_up, down;
    void *k_cache, *v_cache;
};

// What a part of a layer costs is counted under these, in nanoseconds.
enum Operation : int32_t {
    TIME_NORM, TIME_QKV, TIME_ROTATE, TIME_ATTENTION, TIME_OUTPUT, TIME_GATE_UP, TIME_ACTIVATION, TIME_DOWN, OPERATIONS
};

// A stage's layers on one batch. `residual` comes in as the hidden states; afterwards the result is residual + delta.
struct LayersArgs {
    const LayerWeights *layers;
    float *residual, *delta;              // [rows, hidden], rows contiguous
    float *x, *qkv, *mixed, *gate_up, *activated;  // room for all rows
    const int64_t *keep;                  // null; or the rows, rising, that go on after the last layer's attention
    int64_t *nanoseconds;                 // null, or [OPERATIONS], added to
    int64_t num_layers, kept, hidden, intermediate;
    RotateArgs rotate;                    // without q, k, v and the caches
    AttentionArgs attention;              // without q, out and the caches
    float eps;
};

// What an exported function returns; native.py has a text for each.
enum Status : int32_t {
    OK = 0,
    NO_MEMORY = 1,
    BAD_POSITION = 2,
    BAD_SLOT = 3,
    BAD_QUERY_STARTS = 4,
    BAD_CONTEXT_LENGTH = 5,
    BAD_BLOCK = 6,
    BAD_ROW = 7,
    BAD_KEEP = 8,
};

// Whether every number that the kernels use as an index lies inside its tensor. Costs a look at each.
Status check(const RotateArgs &);
Status check(const AttentionArgs &);
Status check(const UnpackArgs &);

struct PackedKernels {
    int64_t (*bytes)(int32_t format, int64_t rows, int64_t columns);  // -1: no such format, or columns cut a block
    Status (*product)(const PackedArgs &);
    void (*pack)(const PackArgs &);
    void (*unpack)(const UnpackArgs &);
};

struct Kernels {
    void (*norm)(const NormArgs &);
    void (*silu_mul)(const SiluArgs &);
    void (*rotate_and_store)(const RotateArgs &);
    Status (*attention)(const AttentionArgs &);
    const PackedKernels *packed;
};

Status run_layers(const Kernels &, const LayersArgs &);

namespace scalar { extern const Kernels kernels; extern const PackedKernels packed_kernels, int8_kernels; }
namespace avx2 { extern const Kernels kernels; extern const PackedKernels packed_kernels, int8_kernels; }
namespace avx512 { extern const Kernels kernels; extern const PackedKernels packed_kernels, int8_kernels; }

}  // namespace paceline
