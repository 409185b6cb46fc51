// bytes.h - loads and stores integers at any alignment, in network order or little-endian.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace weft {

template <typename T>
inline T load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
inline void store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

constexpr bool kLittleEndian = std::endian::native == std::endian::little;

inline uint16_t to_be16(uint16_t value) { return kLittleEndian ? __builtin_bswap16(value) : value; }
inline uint32_t to_be32(uint32_t value) { return kLittleEndian ? __builtin_bswap32(value) : value; }
inline uint64_t to_be64(uint64_t value) { return kLittleEndian ? __builtin_bswap64(value) : value; }

inline uint32_t to_le32(uint32_t value) { return kLittleEndian ? value : __builtin_bswap32(value); }
inline uint64_t to_le64(uint64_t value) { return kLittleEndian ? value : __builtin_bswap64(value); }

inline uint16_t load_be16(const uint8_t* at) { return to_be16(load<uint16_t>(at)); }
inline uint32_t load_be32(const uint8_t* at) { return to_be32(load<uint32_t>(at)); }
inline uint32_t load_le32(const uint8_t* at) { return to_le32(load<uint32_t>(at)); }
inline uint64_t load_le64(const uint8_t* at) { return to_le64(load<uint64_t>(at)); }
inline void store_be16(uint8_t* at, uint16_t value) { store(at, to_be16(value)); }
inline void store_be32(uint8_t* at, uint32_t value) { store(at, to_be32(value)); }
inline void store_le32(uint8_t* at, uint32_t value) { store(at, to_le32(value)); }
inline void store_le64(uint8_t* at, uint64_t value) { store(at, to_le64(value)); }

}  // namespace weft
