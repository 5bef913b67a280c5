#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include <png.h>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/encoded_image.h"

namespace paceline::images {
namespace {

// Chunks that libpng need not interpret; some are compressed. png_orientation() reads some of them.
constexpr char kSkipped[] = "iCCP\0zTXt\0iTXt\0tEXt\0eXIf\0sPLT\0hIST\0pCAL\0sCAL";
constexpr int kNumSkipped = 9;

struct PngState {
  png_structp png;
  png_infop info;
  std::jmp_buf landing;
  char reason[128];
  std::span<const std::byte> unread;
  std::size_t offset;
  // The state of one read.
  Region region;
  std::uint8_t* rows;  // one row, or all rows of an interlaced image
  bool is_interlaced;
  Image* image;
};

[[noreturn]] void leave(png_structp png, png_const_charp reason) {
  auto& state = *static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state.reason, sizeof state.reason, "%s", reason);
  std::longjmp(state.landing, 1);
}

void print_nothing(png_structp /*png*/, png_const_charp /*text*/) {}

void give_bytes(png_structp png, png_bytep into, png_size_t size) {
  auto& state = *static_cast<PngState*>(png_get_io_ptr(png));
  if (size > state.unread.size()) {
    std::snprintf(state.reason, sizeof state.reason, "it ends at byte %zu",
                  state.offset + state.unread.size());
    std::longjmp(state.landing, 1);
  }
  std::memcpy(into, state.unread.data(), size);
  state.unread = state.unread.subspan(size);
  state.offset += size;
}

// Runs one step; returns false when libpng reported an error, whose text is in `reason`. A step has
// no locals with a destructor, because an error jumps out of it.
bool run(PngState& state, void (*step)(PngState&)) {
  if (setjmp(state.landing) != 0) return false;
  step(state);
  return true;
}

void open_step(PngState& state) {
  state.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, leave, print_nothing);
  if (state.png == nullptr) return;
  state.info = png_create_info_struct(state.png);
  png_set_read_fn(state.png, &state, give_bytes);
  // EncodedImage has limits of its own, with clearer messages.
  png_set_user_limits(state.png, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  // libpng allocates the memory of a chunk before it reads the chunk; no chunk can be longer than
  // the file.
  png_set_chunk_malloc_max(state.png, state.unread.size());
  png_set_keep_unknown_chunks(state.png, PNG_HANDLE_CHUNK_NEVER,
                              reinterpret_cast<png_const_bytep>(kSkipped), kNumSkipped);
  png_read_info(state.png, state.info);
}

void start_step(PngState& state) {
  png_structp png = state.png;
  png_set_strip_16(png);
  png_set_expand(png);
  png_set_strip_alpha(png);
  png_set_gray_to_rgb(png);
  state.is_interlaced = png_set_interlace_handling(png) > 1;
  png_read_update_info(png, state.info);
}

void copy_row(PngState& state, const std::uint8_t* row, int y) {
  std::memcpy(state.image->row(y - state.region.y), row + Image::kChannels * state.region.x,
              static_cast<std::size_t>(Image::kChannels * state.region.width));
}

void rows_step(PngState& state) {
  const int end = state.region.y + state.region.height;
  for (int y = 0; y < end; ++y) {
    png_read_row(state.png, state.rows, nullptr);
    if (y >= state.region.y) copy_row(state, state.rows, y);
  }
}

void passes_step(PngState& state) {
  const std::size_t row_bytes = png_get_rowbytes(state.png, state.info);
  const png_uint_32 height = png_get_image_height(state.png, state.info);
  for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES; ++pass) {
    for (png_uint_32 y = 0; y < height; ++y)
      png_read_row(state.png, state.rows + y * row_bytes, nullptr);
  }
  const int end = state.region.y + state.region.height;
  for (int y = state.region.y; y < end; ++y)
    copy_row(state, state.rows + static_cast<std::size_t>(y) * row_bytes, y);
}

class PngCodec : public Codec {
 public:
  PngCodec(std::span<const std::byte> bytes, const std::string& name) : bytes_(bytes), name_(name) {
    open();
  }
  PngCodec(const PngCodec&) = delete;
  PngCodec& operator=(const PngCodec&) = delete;
  ~PngCodec() override { close(); }

  Size size() const override { return size_; }
  int orientation() const override { return png_orientation(bytes_); }
  bool can_reduce() const override { return false; }

  Image read(const Region& region, int /*reduction*/) override {
    if (!is_fresh_) open();
    is_fresh_ = false;
    state_.region = region;
    require(run(state_, start_step));
    const std::size_t row_bytes = png_get_rowbytes(state_.png, state_.info);
    check(row_bytes == 3 * static_cast<std::size_t>(size_.width),
          "{}: libpng decodes {} bytes per row instead of {}", name_, row_bytes, 3 * size_.width);
    const std::size_t num_rows = state_.is_interlaced ? static_cast<std::size_t>(size_.height) : 1;
    std::vector<std::uint8_t> rows(row_bytes * num_rows);
    Image image({region.width, region.height});
    state_.rows = rows.data();
    state_.image = &image;
    require(run(state_, state_.is_interlaced ? passes_step : rows_step));
    return image;
  }

 private:
  void open() {
    close();
    state_ = {};
    state_.unread = bytes_;
    if (!run(state_, open_step)) {
      close();
      require(false);
    }
    check(state_.png != nullptr && state_.info != nullptr, "{}: libpng has no memory", name_);
    size_ = {static_cast<int>(png_get_image_width(state_.png, state_.info)),
             static_cast<int>(png_get_image_height(state_.png, state_.info))};
    is_fresh_ = true;
  }
  void close() { png_destroy_read_struct(&state_.png, &state_.info, nullptr); }
  void require(bool done) const {
    if (!done) fail(ErrorCode::kCorrupt, "{}: not a valid PNG: {}", name_, state_.reason);
  }

  const std::span<const std::byte> bytes_;
  const std::string name_;
  PngState state_{};
  Size size_;
  bool is_fresh_ = false;
};

}  // namespace

std::unique_ptr<Codec> open_png(std::span<const std::byte> bytes, const std::string& name) {
  return std::make_unique<PngCodec>(bytes, name);
}

}  // namespace paceline::images
