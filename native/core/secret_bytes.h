// secret_bytes.h - byte buffers that are wiped when they are freed, with a writer and a reader for values.
//
// Values are in host byte order, because they never leave this host.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "bytes.h"

namespace weft {

/// An allocator that wipes memory before it frees the memory, also when a vector grows.
template <typename T>
struct WipingAllocator {
  using value_type = T;
  WipingAllocator() = default;
  template <typename U>
  explicit WipingAllocator(const WipingAllocator<U>&) {}
  T* allocate(size_t count) { return std::allocator<T>().allocate(count); }
  void deallocate(T* at, size_t count) {
    explicit_bzero(at, count * sizeof(T));
    std::allocator<T>().deallocate(at, count);
  }
  bool operator==(const WipingAllocator&) const = default;
};
using SecretBytes = std::vector<uint8_t, WipingAllocator<uint8_t>>;

class SecretWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T>
  void put(const T& value) { put_bytes({reinterpret_cast<const uint8_t*>(&value), sizeof value}); }
  void put_bytes(std::span<const uint8_t> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  /// Writes the number of elements, then calls `put_one` to write each element.
  template <typename List, typename PutOne>
  void put_all(const List& list, PutOne put_one) {
    put(static_cast<uint32_t>(list.size()));
    for (const auto& each : list) put_one(each);
  }
  SecretBytes take() { return std::exchange(bytes_, {}); }

 private:
  SecretBytes bytes_;
};

/// Reads untrusted bytes. After the first missing or invalid value, all further values are zero, and is_good() returns
/// false.
class SecretReader {
 public:
  explicit SecretReader(std::span<const uint8_t> bytes) : rest_(bytes) {}

  /// Reads a value of a type for which any bytes are valid. bool is not such a type; use get_flag().
  template <typename T>
  requires(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>) T get() {
    T value{};
    const std::span<const uint8_t> bytes = get_bytes(sizeof value);
    if (!bytes.empty()) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  bool get_flag() { return get<uint8_t>() != 0; }
  /// Returns the next `size` bytes. If fewer bytes are left, marks the input as bad and returns an empty span.
  std::span<const uint8_t> get_bytes(size_t size) {
    if (size > rest_.size()) return refuse(), std::span<const uint8_t>();
    const std::span<const uint8_t> bytes = rest_.first(size);
    rest_ = rest_.subspan(size);
    return bytes;
  }
  /// Reads a list that put_all wrote: calls `get_one`, which must read one element, for each element.
  template <typename GetOne>
  void get_all(GetOne get_one) {
    for (auto left = get<uint32_t>(); left > 0 && is_good_; left--) get_one();
  }
  void refuse() {
    is_good_ = false;
    rest_ = {};
  }
  bool is_good() const { return is_good_; }
  /// True if all bytes were read and no value was missing or invalid.
  bool is_whole() const { return is_good_ && rest_.empty(); }

 private:
  std::span<const uint8_t> rest_;
  bool is_good_ = true;
};

}  // namespace weft
