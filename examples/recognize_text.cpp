// Reads one line of text from a picture with a PP-OCR recognition model.
// Usage: recognize_text MODEL.onnx KEYS.txt PICTURE.{pgm,ppm}
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "lathe/lathe.h"

namespace {

struct Picture {
  int width = 0, height = 0, channels = 0;
  std::vector<unsigned char> pixels;  // row by row, channels innermost
};

// A number of the header; comments run from '#' to the end of the line.
int read_header_number(std::istream& file) {
  while (file >> std::ws && file.peek() == '#') file.ignore(1 << 20, '\n');
  int number = 0;
  file >> number;
  return number;
}

// Binary PGM ("P5", gray) or PPM ("P6", red green blue) of 8 bits.
Picture read_picture(const std::string& path) {
  constexpr int kMostPixelsAcross = 10'000;
  std::ifstream file(path, std::ios::binary);
  std::string magic(2, ' ');
  file.read(magic.data(), 2);
  Picture picture;
  picture.width = read_header_number(file);
  picture.height = read_header_number(file);
  const int largest = read_header_number(file);
  file.get();
  picture.channels = magic == "P6" ? 3 : 1;
  if (!file || (magic != "P5" && magic != "P6") || largest != 255 || std::min(picture.width, picture.height) < 1 ||
      std::max(picture.width, picture.height) > kMostPixelsAcross)
    throw std::runtime_error(path + ": not an 8-bit binary PGM or PPM picture");
  picture.pixels.resize(static_cast<size_t>(picture.width) * static_cast<size_t>(picture.height) *
                        static_cast<size_t>(picture.channels));
  file.read(reinterpret_cast<char*>(picture.pixels.data()), static_cast<std::streamsize>(picture.pixels.size()));
  if (!file) throw std::runtime_error(path + ": the picture ends early");
  return picture;
}

float pixel(const Picture& picture, int x, int y, int channel) {
  const int row = std::clamp(y, 0, picture.height - 1), column = std::clamp(x, 0, picture.width - 1);
  const int of_pixel = std::min(channel, picture.channels - 1);
  return picture.pixels[static_cast<size_t>((row * picture.width + column) * picture.channels + of_pixel)];
}

// Bilinear, with pixel centres in the middle of pixels.
float sample(const Picture& picture, float x, float y, int channel) {
  const float left = std::floor(x), top = std::floor(y);
  const int column = static_cast<int>(left), row = static_cast<int>(top);
  const float right_part = x - left, lower_part = y - top;
  const float upper =
      pixel(picture, column, row, channel) * (1 - right_part) + pixel(picture, column + 1, row, channel) * right_part;
  const float lower = pixel(picture, column, row + 1, channel) * (1 - right_part) +
                      pixel(picture, column + 1, row + 1, channel) * right_part;
  return upper * (1 - lower_part) + lower * lower_part;
}

// What the model was trained on: 1 x 3 (blue, green, red) x 48 x width, values from -1 to 1, at least 320 wide.
lathe::Tensor to_input(const Picture& picture) {
  constexpr int kHeight = 48, kLeastWidth = 320;
  const float scale = static_cast<float>(picture.height) / kHeight;
  const int text_width = std::max(1, static_cast<int>(std::lround(static_cast<float>(picture.width) / scale)));
  const int width = std::max(text_width, kLeastWidth);
  lathe::Tensor input(lathe::DType::f32, {1, 3, kHeight, width});  // zeros: gray on the right of a short text
  float* values = input.mutable_data<float>();
  for (int channel = 0; channel < 3; ++channel)
    for (int y = 0; y < kHeight; ++y)
      for (int x = 0; x < text_width; ++x) {
        const float value = sample(picture, (static_cast<float>(x) + 0.5F) * scale - 0.5F,
                                   (static_cast<float>(y) + 0.5F) * scale - 0.5F, 2 - channel);
        values[(channel * kHeight + y) * width + x] = (value / 255 - 0.5F) / 0.5F;
      }
  return input;
}

// Class 0 is "nothing here", then the characters of the file, then a space.
std::vector<std::string> read_classes(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> classes = {""};
  for (std::string line; std::getline(file, line);) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    classes.push_back(line);
  }
  if (classes.size() < 2) throw std::runtime_error(path + ": no characters in it");
  classes.emplace_back(" ");
  return classes;
}

// The best class of each place, without repeats and blanks ("connectionist temporal classification").
std::string decode(const lathe::Tensor& scores, const std::vector<std::string>& classes) {
  const auto class_count = static_cast<size_t>(scores.dims().back());
  if (class_count != classes.size())
    throw std::runtime_error("the model tells " + std::to_string(class_count) +
                             " classes, the file of characters has " + std::to_string(classes.size()));
  const auto values = scores.elements<float>();
  std::string text;
  size_t previous = 0;
  for (size_t begin = 0; begin < values.size(); begin += class_count) {
    const auto place = values.subspan(begin, class_count);
    const auto best = static_cast<size_t>(std::max_element(place.begin(), place.end()) - place.begin());
    if (best != previous) text += classes[best];
    previous = best;
  }
  return text;
}

double median_run_ms(const lathe::Session& session, std::span<const lathe::Tensor> inputs) {
  constexpr int kRuns = 20;
  std::vector<double> times_ms;
  for (int i = 0; i < kRuns; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    session.run(inputs);
    times_ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times_ms.begin(), times_ms.end());
  return times_ms[kRuns / 2];
}

void print_profile(const lathe::Profile& profile) {
  struct Share {
    double ms = 0, flop = 0;
    int steps = 0;
  };
  std::map<std::string, Share> by_operator;
  double total_ms = 0;
  for (const lathe::StepTime& step : profile.steps) {
    Share& share = by_operator[step.op];
    const double ms = static_cast<double>(step.end_ns - step.begin_ns) / 1e6;
    share.ms += ms;
    share.flop += step.flop;
    ++share.steps;
    total_ms += ms;
  }
  std::vector<std::pair<std::string, Share>> shares(by_operator.begin(), by_operator.end());
  std::sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.second.ms > b.second.ms; });
  constexpr size_t kRows = 12;
  std::printf("%8s %6s %6s %9s  %s\n", "ms", "%", "steps", "GFLOP/s", "operator");
  for (size_t i = 0; i < std::min(shares.size(), kRows); ++i) {
    const auto& [name, share] = shares[i];
    std::printf("%8.3f %6.1f %6d %9.1f  %s\n", share.ms, 100 * share.ms / total_ms, share.steps,
                share.flop / std::max(share.ms, 1e-6) / 1e6, name.c_str());
  }
}

void recognize(const std::string& model, const std::string& keys, const std::string& path) {
  const std::vector<std::string> classes = read_classes(keys);
  const lathe::Tensor input = to_input(read_picture(path));
  const auto begin = std::chrono::steady_clock::now();
  const lathe::Session session = lathe::Session::load(model);
  const auto loaded = std::chrono::steady_clock::now();
  const std::span<const lathe::Tensor> inputs(&input, 1);
  const std::vector<lathe::Tensor> outputs = session.run(inputs);
  const auto first = std::chrono::steady_clock::now();
  using Milliseconds = std::chrono::duration<double, std::milli>;
  std::printf("text:   %s\n", decode(outputs.at(0), classes).c_str());
  std::printf("shape:  %s -> %s\n", lathe::to_string(input.dims()).c_str(),
              lathe::to_string(outputs.at(0).dims()).c_str());
  std::printf("load:   %.1f ms\n", Milliseconds(loaded - begin).count());
  std::printf("first:  %.1f ms (makes the code for this shape)\n", Milliseconds(first - loaded).count());
  std::printf("run:    %.2f ms (median of 20)\n", median_run_ms(session, inputs));
  lathe::Profile profile;
  session.run_profiled(inputs, profile);
  print_profile(profile);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: recognize_text MODEL.onnx KEYS.txt PICTURE.{pgm,ppm}\n");
    return 2;
  }
  try {
    recognize(argv[1], argv[2], argv[3]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recognize_text: %s\n", error.what());
    return 1;
  }
}
