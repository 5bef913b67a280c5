#pragma once

// The element loops of the optimizers (kernels.cpp) and loops over blocks of floats
// (block_kernels.cpp), vectorised for the current processor, without LibTorch.
//
// Each loop of an optimizer also computes checksums of the parameter and of the state, as it reads
// them and as it writes them, so that the next step can check that neither has changed since. The
// checksums cost next to nothing, because memory limits the loops. In these loops, sums[0] belongs
// to the parameter and the other sums to the state, in the order of the arguments.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "paceline/engine/core/dtype_traits.h"

namespace paceline::optim {

// Sums of 32-bit words, modulo 2^32: a single flipped bit always changes the sum, and the order of
// the additions does not matter.
struct WordSums {
  std::uint32_t read = 0;
  std::uint32_t written = 0;
  bool any = false;  // whether a loop has added to them

  void add(std::uint32_t more_read, std::uint32_t more_written) {
    read += more_read;
    written += more_written;
    any = true;
  }
};

// The arguments of adam_kernel(), which serves Adam and AdamW.
struct AdamKernelArguments {
  float beta1 = 0, beta2 = 0, one_minus_beta1 = 0, one_minus_beta2 = 0;
  float step_size = 0;           // lr / (1 - beta1^t)
  float inverse_root_bias2 = 0;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float gradient_decay = 0;   // Adam: weight decay added to the gradient
  float parameter_scale = 1;  // AdamW: 1 - lr x weight decay
};

void adam_kernel(const AdamKernelArguments& a, float* parameter, const float* gradient,
                 float* exp_avg, float* exp_avg_sq, std::int64_t count, WordSums* sums);

struct SgdKernelArguments {
  float lr = 0, momentum = 0, gradient_share = 1, weight_decay = 0;
  bool nesterov = false;
};

// `velocity` is null for SGD without momentum. gradient_share: 1 in step 1, then 1 - dampening.
void sgd_kernel(const SgdKernelArguments& a, float* parameter, const float* gradient,
                float* velocity, std::int64_t count, WordSums* sums);

// sum += g^2, parameter -= lr x g / (sqrt(sum) + eps), where g is the gradient with weight decay.
struct AdagradKernelArguments {
  float lr = 0, eps = 0, weight_decay = 0;
};

void adagrad_kernel(const AdagradKernelArguments& a, float* parameter, const float* gradient,
                    float* sum_of_squares, std::int64_t count, WordSums* sums);

struct LambKernelArguments {
  float beta1 = 0, beta2 = 0, one_minus_beta1 = 0, one_minus_beta2 = 0;
  float inverse_bias1 = 0;       // 1 / (1 - beta1^t)
  float inverse_root_bias2 = 0;  // 1 / sqrt(1 - beta2^t)
  float eps = 0;
  float weight_decay = 0;
};

// Updates the moments, and computes the direction of the update from them and the weight decay.
void lamb_moments_kernel(const LambKernelArguments& a, const float* parameter,
                         const float* gradient, float* exp_avg, float* exp_avg_sq, float* direction,
                         std::int64_t count, WordSums* sums);
// parameter -= rate x direction; the direction is computed again from the updated moments.
void lamb_kernel(const LambKernelArguments& a, float rate, float* parameter, const float* exp_avg,
                 const float* exp_avg_sq, std::int64_t count, WordSums* sums);

// velocity = momentum x velocity + rate x (gradient + weight_decay x parameter); parameter -=
// velocity.
void lars_kernel(float rate, float momentum, float weight_decay, float* parameter,
                 const float* gradient, float* velocity, std::int64_t count, WordSums* sums);

// average = decay x average + (1 - decay) x value. Adds the words of the average to `sums`.
void average_kernel(float decay, float one_minus_decay, const float* values, float* average,
                    std::int64_t count, WordSums* sums);

// Loops over blocks of floats: sums of powers for norms, scaling, and conversions between 16-bit
// floats and float32. A sum of squares has the same bits on every instruction set: squares of
// float32 numbers are exact in float64, and the order of the additions is fixed. Element i is added
// to lane i mod 16, and the 16 lanes are added as a balanced tree.

// The number of elements of a block. A norm has one partial sum for each block.
constexpr std::int64_t kBlock = 1024;

double sum_of_squares(const float* values, std::int64_t count);
double sum_of_magnitudes(const float* values, std::int64_t count);
// The sum of |value|^power.
double sum_of_powers(const float* values, std::int64_t count, double power);
// The result is NaN if any value is NaN.
double largest_magnitude(const float* values, std::int64_t count);

bool all_finite(const float* values, std::int64_t count);
void scale(float* values, std::int64_t count, float factor);
// NaN stays NaN.
void clamp(float* values, std::int64_t count, float largest_magnitude);

// In widen(), narrow() and follow(), `type` is kBfloat16 or kFloat16; rounding is to nearest even.
void widen(Dtype type, const void* from, float* to, std::int64_t count);
// The sum of the 32-bit words of float32 values, or of the 16-bit words of 16-bit floats.
std::uint32_t sum_words(Dtype type, const void* values, std::int64_t count);
struct MasterSums {
  std::uint32_t master = 0;
  std::uint32_t parameter = 0;
};
// Stores the values of `from`, rounded, in `to`. Returns the checksums of both.
MasterSums narrow(Dtype type, const float* from, void* to, std::int64_t count);
// An element of `master` that does not round to its parameter takes the parameter's value. Returns
// the checksums that both had before the call.
MasterSums follow(Dtype type, const void* parameter, float* master, std::int64_t count);

}  // namespace paceline::optim
