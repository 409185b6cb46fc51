// kube-apiserver.mjs - a real kube-apiserver for `npm run test:kube`; prints the program's path.

import { printProgram } from './kube-build.mjs'

await printProgram('kube-apiserver', 'WEFT_KUBE_APISERVER')
