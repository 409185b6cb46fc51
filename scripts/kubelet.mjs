// kubelet.mjs - builds kubelet for `npm run test:kubelet` and prints its path.

import { printProgram } from './kube-build.mjs'

// The build tag leaves out the cloud providers, which make up most of kubelet's code and build time.
await printProgram('kubelet', 'WEFT_KUBELET', '-tags=providerless')
