// The errors of a build without the image libraries.

#include "paceline/engine/core/error.h"
#include "paceline/files/images/encoded_image.h"

#include "tests/harness/expect_error.h"

namespace paceline::images {
namespace {

TEST(NoCodecs, an_image_is_refused_with_what_was_missing) {
  for (const auto open : {open_jpeg, open_png}) {
    expect_error(ErrorCode::kUnsupported, {"a.jpg", "cannot decode images", "libpng was not found"},
                 [&] { open({}, "a.jpg"); });
  }
}

}  // namespace
}  // namespace paceline::images
