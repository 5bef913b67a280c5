#include "paceline/parallel/lockstep.h"

#include <algorithm>
#include <string>

namespace paceline {

Error with_advice(const Error& error) {
  constexpr const char* kMismatch = "collectives do not match";  // of collectives/collective.cpp
  constexpr const char* kRecords = "; flight records: ";         // of collectives/flight/
  constexpr const char* kAdvice =
      ": forward() broadcasts rank 0's buffers and backward() averages gradients, so all ranks "
      "must call them alike, those of several modules in the same order; to run the model on one "
      "rank alone, as for an evaluation, call model.module().forward(x)";
  std::string text = error.what();
  if (text.find(kMismatch) == std::string::npos) return error;
  text.insert(std::min(text.find(kRecords), text.size()), kAdvice);
  return Error(error.code(), text);
}

}  // namespace paceline
