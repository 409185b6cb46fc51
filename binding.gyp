{
  "targets": [
    {
      "target_name": "weft",
      "sources": ["native/addon.cc"],
      "include_dirs": ["<!(node -p \"require('node-addon-api').include_dir\")"],
      "defines": ["NAPI_VERSION=8", "NODE_ADDON_API_DISABLE_CPP_EXCEPTIONS"],
      "cflags_cc!": ["-std=gnu++17", "-std=gnu++20"],
      "cflags_cc": ["-std=c++20", "-O3", "-Wall", "-Wextra", "-fno-exceptions", "-fvisibility=hidden"],
      "cflags": ["-fno-omit-frame-pointer"]
    }
  ]
}
