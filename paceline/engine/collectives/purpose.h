#pragma once

// The functions of the library whose calls a program might make on some ranks only, in a branch
// such as `if (rank == 0)`. The call of such a function carries its purpose as Call::shape. So it
// is compared between the ranks, and the error of every rank names the function
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

// The purpose of the calls of a function, for Call::shape (FNV-1a).
constexpr std::uint32_t purpose_of(std::string_view function) {
  std::uint32_t hash = 2166136261U;
  for (const char letter : function) hash = (hash ^ static_cast<std::uint8_t>(letter)) * 16777619U;
  return hash;
}

// The function to which the call with this shape belongs; empty for all other shapes.
constexpr std::string_view function_of(std::uint32_t shape) {
  for (const std::string_view function :
       {kEvaluate, kEvaluateText, kClipGradNorm, kStepPipeline, kEvaluatePipeline,
        kMakeCheckpointer, kBegin, kSave, kSaveToMemory, kRestore, kFinish, kTest, kSaveIfBest}) {
    if (purpose_of(function) == shape) return function;
  }
  return "";
}

}  // namespace paceline
