#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

#include <jerror.h>
#include <jpeglib.h>

#include "paceline/engine/core/check.h"
#include "paceline/files/images/encoded_image.h"

namespace paceline::images {
namespace {

// The most scans of a progressive file; a scan of a few bytes can cost a pass over the whole image.
constexpr int kMaxScans = 500;
// Columns that are also decoded on each side of a region, so that the filter that upsamples chroma
// sees the same neighbours as in the whole image.
constexpr int kMargin = 8;
constexpr std::size_t kExifIntro = 6;  // "Exif", 0, 0

struct JpegState {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_progress_mgr progress;
  std::jmp_buf landing;
  char reason[JMSG_LENGTH_MAX];
  std::span<const std::byte> bytes;
  // The state of one read.
  Region region;
  int reduction;
  int first_column;  // the column at which the library's rows begin
  std::uint8_t* row;
  Image* image;
};

[[noreturn]] void leave(j_common_ptr info) {
  auto& state = *static_cast<JpegState*>(info->client_data);
  info->err->format_message(info, state.reason);
  std::longjmp(state.landing, 1);
}

// Whether the library continues after this warning with invented pixels.
bool damages(int code) {
  return code == JWRN_HIT_MARKER || code == JWRN_HUFF_BAD_CODE || code == JWRN_JPEG_EOF ||
         code == JWRN_MUST_RESYNC;
}

void on_warning(j_common_ptr info, int level) {
  if (level < 0 && damages(info->err->msg_code)) leave(info);
}

void print_nothing(j_common_ptr /*info*/) {}

void count_scans(j_common_ptr info) {
  auto& state = *static_cast<JpegState*>(info->client_data);
  if (state.info.input_scan_number <= kMaxScans) return;
  std::snprintf(state.reason, sizeof state.reason, "more than %d scans", kMaxScans);
  std::longjmp(state.landing, 1);
}

// Runs one step; returns false when the library reported an error, whose text is in `reason`. A
// step has no locals with a destructor.
bool run(JpegState& state, void (*step)(JpegState&)) {
  if (setjmp(state.landing) != 0) return false;
  step(state);
  return true;
}

void open_step(JpegState& state) {
  jpeg_decompress_struct& info = state.info;
  jpeg_create_decompress(&info);
  info.client_data = &state;
  info.progress = &state.progress;
  jpeg_save_markers(&info, JPEG_APP0 + 1, 0xffff);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(state.bytes.data()),
               static_cast<unsigned long>(state.bytes.size()));
  jpeg_read_header(&info, TRUE);
}

void start_step(JpegState& state) {
  jpeg_decompress_struct& info = state.info;
  info.out_color_space = info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(state.reduction);
  jpeg_start_decompress(&info);
  state.first_column = 0;
  const auto all = static_cast<int>(info.output_width);
  const int begin = std::max(0, state.region.x - kMargin);
  const int end = std::min(all, state.region.x + state.region.width + kMargin);
  if (begin > 0 || end < all) {
    auto offset = static_cast<JDIMENSION>(begin);
    auto width = static_cast<JDIMENSION>(end - begin);
    jpeg_crop_scanline(&info, &offset, &width);
    state.first_column = static_cast<int>(offset);
  }
}

// Pillow's conversion: the four inks are stored inverted, as Adobe's programs write them.
void cmyk_to_rgb(const std::uint8_t* from, std::uint8_t* to, int width) {
  for (int x = 0; x < width; ++x, from += 4, to += 3) {
    const int light = from[3];
    for (int channel = 0; channel < 3; ++channel) {
      const int product = (255 - from[channel]) * light + 128;
      to[channel] =
          static_cast<std::uint8_t>(std::clamp(light - (((product >> 8) + product) >> 8), 0, 255));
    }
  }
}

void rows_step(JpegState& state) {
  jpeg_decompress_struct& info = state.info;
  const Region& region = state.region;
  if (region.y > 0) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(region.y));
  for (int y = 0; y < region.height; ++y) {
    JSAMPROW row = state.row;
    jpeg_read_scanlines(&info, &row, 1);
    const std::uint8_t* from =
        row + static_cast<std::ptrdiff_t>(region.x - state.first_column) * info.output_components;
    std::uint8_t* to = state.image->row(y);
    if (info.output_components == 4) {
      cmyk_to_rgb(from, to, region.width);
    } else {
      std::memcpy(to, from, static_cast<std::size_t>(Image::kChannels * region.width));
    }
  }
}

class JpegCodec : public Codec {
 public:
  JpegCodec(std::span<const std::byte> bytes, const std::string& name) : name_(name) {
    state_.bytes = bytes;
    state_.info.err = jpeg_std_error(&state_.errors);
    state_.errors.error_exit = leave;
    state_.errors.emit_message = on_warning;
    state_.errors.output_message = print_nothing;
    state_.progress.progress_monitor = count_scans;
    state_.info.client_data = &state_;
    open();
  }
  JpegCodec(const JpegCodec&) = delete;
  JpegCodec& operator=(const JpegCodec&) = delete;
  ~JpegCodec() override { jpeg_destroy_decompress(&state_.info); }

  Size size() const override {
    return {static_cast<int>(state_.info.image_width), static_cast<int>(state_.info.image_height)};
  }
  int orientation() const override {
    for (jpeg_saved_marker_ptr marker = state_.info.marker_list; marker; marker = marker->next) {
      const std::span data(reinterpret_cast<const std::byte*>(marker->data), marker->data_length);
      if (data.size() >= kExifIntro && std::memcmp(data.data(), "Exif\0", kExifIntro) == 0)
        return orientation_of(data).value_or(1);
    }
    return 1;
  }
  // If a chroma sample covers eight pixels (4:1:0), a region of a reduced image has different
  // pixels from the whole image, because libjpeg-turbo places scaled chroma samples differently
  // when it skips rows.
  bool can_reduce() const override {
    for (int i = 0; i < state_.info.num_components; ++i) {
      const jpeg_component_info& component = state_.info.comp_info[i];
      const int pixels = state_.info.max_h_samp_factor * state_.info.max_v_samp_factor;
      if (pixels > 4 * component.h_samp_factor * component.v_samp_factor) return false;
    }
    return true;
  }

  Image read(const Region& region, int reduction) override {
    if (!is_fresh_) open();
    is_fresh_ = false;
    state_.region = region;
    state_.reduction = reduction;
    require(run(state_, start_step));
    std::vector<std::uint8_t> row(static_cast<std::size_t>(state_.info.output_width) *
                                  static_cast<std::size_t>(state_.info.output_components));
    Image image({region.width, region.height});
    state_.row = row.data();
    state_.image = &image;
    require(run(state_, rows_step));
    return image;
  }

 private:
  void open() {
    jpeg_destroy_decompress(&state_.info);
    if (!run(state_, open_step)) {
      const std::string reason = state_.reason;
      jpeg_destroy_decompress(&state_.info);
      fail(ErrorCode::kCorrupt, "{}: not a valid JPEG: {}", name_, reason);
    }
    is_fresh_ = true;
  }
  void require(bool done) const {
    if (!done) fail(ErrorCode::kCorrupt, "{}: not a valid JPEG: {}", name_, state_.reason);
  }

  const std::string name_;
  JpegState state_{};
  bool is_fresh_ = false;
};

}  // namespace

std::unique_ptr<Codec> open_jpeg(std::span<const std::byte> bytes, const std::string& name) {
  return std::make_unique<JpegCodec>(bytes, name);
}

}  // namespace paceline::images
