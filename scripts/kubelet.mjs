// kubelet.mjs - builds kubelet for `npm run test:kubelet` and prints its path.

import { printProgram } from './kube-build.mjs'

// Without the cloud providers, which are most of the program.
await printProgram('kubelet', 'WEFT_KUBELET', '-tags=providerless')
