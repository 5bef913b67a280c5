#include "paceline/training/tensor/compute_settings.h"

#include <cstdlib>
#include <string>
#include <string_view>

#include <dlfcn.h>

#include <ATen/Parallel.h>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/log.h"
#include "paceline/training/tensor/libtorch_version.h"

namespace paceline {

namespace {

void require_supported(at::ScalarType type) {
  if (type == at::kBFloat16 || (type == at::kHalf && CpuAutocast::kHasHalf)) return;
  fail(ErrorCode::kUnsupported,
       "autocast: {} is not available on the CPU with LibTorch {}; use bfloat16{}",
       c10::toString(type), TORCH_VERSION,
       type == at::kHalf ? ", or LibTorch 2.4 or later for float16" : "");
}

}  // namespace

Autocast::Autocast(at::ScalarType type, bool enabled)
    : was_enabled_(CpuAutocast::is_enabled()), type_before_(CpuAutocast::dtype()) {
  require_supported(type);
  CpuAutocast::set_enabled(enabled);
  CpuAutocast::set_dtype(type);
  at::autocast::increment_nesting();
}

Autocast::~Autocast() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  CpuAutocast::set_enabled(was_enabled_);
  CpuAutocast::set_dtype(type_before_);
}

namespace {

bool was_chosen = false;  // by set_thread_count()

// Finds a function in the libraries that LibTorch has loaded; null if there is none of this name.
template <class Function>
Function* find_function(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

std::string_view variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// If OMP_NUM_THREADS equals PACELINE_THREAD_SHARE, the launcher set it, not the user.
bool is_chosen() {
  const std::string_view threads = variable("OMP_NUM_THREADS");
  const std::string_view share = variable("PACELINE_THREAD_SHARE");
  if (was_chosen || (!threads.empty() && threads != share)) return true;
  return !share.empty() && std::to_string(at::get_num_threads()) != share;
}

int apply(int num_threads) {
  if (num_threads > 0) at::set_num_threads(num_threads);
  const int threads = at::get_num_threads();
  if (auto* const set_openblas = find_function<void(int)>("openblas_set_num_threads")) {
    // The pools of OpenBLAS and OpenMP compete for the same cores, unless OpenBLAS itself uses
    // OpenMP (get_parallel() == 2).
    auto* const parallel = find_function<int()>("openblas_get_parallel");
    set_openblas(parallel != nullptr && parallel() == 2 ? threads : 1);
  }
  return threads;
}

}  // namespace

int set_thread_count(int num_threads) {
  check(num_threads >= 0, "the number of threads {} is negative", num_threads);
  if (num_threads > 0) was_chosen = true;
  return apply(num_threads);
}

int detail::settle_thread_count() {
  const int before = at::get_num_threads();
  if (before == 1 || is_chosen()) return before;
  log::info(fmt::format(
      "logical shards: this rank computes with 1 thread, not {}, because the bits of the results "
      "depend on the number of threads; choose the same number for all ranks with "
      "--threads-per-rank or OMP_NUM_THREADS",
      before));
  return apply(1);
}

}  // namespace paceline
