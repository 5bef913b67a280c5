#pragma once

// The library's functions that a program might call on some ranks only, by mistake, in a branch
// such as `if (rank == 0)`. The collective calls of such a function carry a hash of its name as
// Call::shape. So the ranks compare the hash, and every rank's error names the function
// (Fingerprint::describe()).
//
// Thread safety: pure functions.

#include <cstdint>
#include <string_view>

namespace paceline {

inline constexpr std::string_view kEvaluate = "train::evaluate()";
inline constexpr std::string_view kEvaluateText = "train::evaluate_text()";
inline constexpr std::string_view kClipGradNorm = "optim::clip_grad_norm()";
inline constexpr std::string_view kStepPipeline = "Pipeline::step()";
inline constexpr std::string_view kEvaluatePipeline = "Pipeline::evaluate()";
inline constexpr std::string_view kMakeCheckpointer = "the constructor of train::Checkpointer";
inline constexpr std::string_view kBegin = "train::Checkpointer::begin()";
inline constexpr std::string_view kSave = "train::Checkpointer::save()";
inline constexpr std::string_view kSaveToMemory = "train::Checkpointer::save_to_memory()";
inline constexpr std::string_view kRestore = "train::Checkpointer::restore()";
inline constexpr std::string_view kFinish = "train::Checkpointer::finish()";
inline constexpr std::string_view kTest = "Training::test";
inline constexpr std::string_view kSaveIfBest = "train::EpochReport::save_if_best()";

// The Call::shape of a function's collective calls: the FNV-1a hash of its name.
constexpr std::uint32_t purpose_of(std::string_view function) {
  std::uint32_t hash = 2166136261U;
  for (const char letter : function) hash = (hash ^ static_cast<std::uint8_t>(letter)) * 16777619U;
  return hash;
}

// The function whose name has this hash; empty if none has.
constexpr std::string_view function_of(std::uint32_t shape) {
  for (const std::string_view function :
       {kEvaluate, kEvaluateText, kClipGradNorm, kStepPipeline, kEvaluatePipeline,
        kMakeCheckpointer, kBegin, kSave, kSaveToMemory, kRestore, kFinish, kTest, kSaveIfBest}) {
    if (purpose_of(function) == shape) return function;
  }
  return "";
}

}  // namespace paceline
