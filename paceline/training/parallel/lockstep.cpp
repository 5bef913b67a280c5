#include "paceline/training/parallel/lockstep.h"

#include <algorithm>
#include <string>

namespace paceline {

Error with_advice(const Error& error) {
  constexpr const char* kMismatch =
      "collectives do not match";                         // of engine/collectives/collective.cpp
  constexpr const char* kRecords = "; flight records: ";  // of collectives/flight/
  constexpr const char* kAdvice =
      ": backward() averages gradients and broadcasts rank 0's buffers, so all ranks must call "
      "forward() and backward() alike, those of several modules in the same order; to run the "
      "model on one rank alone, call model.module().forward(x)";
  constexpr const char* kLeft = "has left the group";  // of engine/transport/mesh.cpp
  constexpr const char* kFewerInputs =
      "; where ranks have different numbers of batches, train inside paceline::join(), or take "
      "batches from a data::DataLoader, which gives every rank as many";
  std::string text = error.what();
  const char* const advice = text.find(kMismatch) != std::string::npos ? kAdvice
                             : text.find(kLeft) != std::string::npos   ? kFewerInputs
                                                                       : nullptr;
  if (advice == nullptr) return error;
  text.insert(std::min(text.find(kRecords), text.size()), advice);
  return Error(error.code(), text);
}

}  // namespace paceline
