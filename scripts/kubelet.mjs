// kubelet.mjs - a real kubelet for `npm run test:kubelet`; prints the program's path.

import { printProgram } from './kube-build.mjs'

// Without the clouds' providers, which are most of it.
await printProgram('kubelet', 'WEFT_KUBELET', '-tags=providerless')
