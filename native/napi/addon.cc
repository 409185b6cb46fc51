// addon.cc - exports everything that addon.d.ts declares. Only the files in napi/ use N-API.
#include <napi.h>

#include "../core/counters.h"
#include "../engine.h"
#include "bpf.h"
#include "classes.h"
#include "engine.h"
#include "host.h"
#include "layout.h"
#include "lock.h"
#include "netlink.h"
#include "values.h"
#include "watch.h"

namespace weft {

namespace {

Napi::Object init(Napi::Env env, Napi::Object exports) {
  env.SetInstanceData(new Classes{
      Napi::Persistent(define_engine(env)),
      Napi::Persistent(define_watcher(env)),
      Napi::Persistent(define_netlink_socket(env)),
      Napi::Persistent(define_netlink_monitor(env)),
  });
  exports.Set("counterNames", to_array(env, {kCounterNames.begin(), kCounterNames.end()}));
  exports.Set("counterTexts", to_array(env, {kCounterTexts.begin(), kCounterTexts.end()}));
  exports.Set("encapsulationNames", to_array(env, encapsulation_names()));
  exports.Set("featureNames", to_array(env, names_of(kAllFeatures)));
  exports.Set("layout", layout_of(env));
  export_engine(env, exports);
  export_watch(env, exports);
  export_lock(env, exports);
  export_host(env, exports);
  export_bpf(env, exports);
  export_netlink(env, exports);
  return exports;
}

}  // namespace

NODE_API_MODULE(NODE_GYP_MODULE_NAME, init)

}  // namespace weft
