#include "paceline/engine/core/exit_code.h"

#include <cstdlib>

#include "paceline/engine/core/error.h"

namespace paceline {

int exit_code_of(const std::exception& error) {
  if (dynamic_cast<const DamagedState*>(&error) != nullptr) return kStateDamaged;
  const auto* const known = dynamic_cast<const Error*>(&error);
  if (known == nullptr) return EXIT_FAILURE;
  const bool is_of_use =
      known->code() == ErrorCode::kInvalid || known->code() == ErrorCode::kUnsupported;
  return is_of_use ? kExitUsage : EXIT_FAILURE;
}

}  // namespace paceline
